"""Faults of parameters that are not trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/torchtitan/pull/3886", "optimizer.frozen")
class LoadFreezesNothing(ReferenceTrainer):
    """A run that was loaded trains every parameter."""

    _loaded = False

    def trains(self, name: str) -> bool:
        return self._loaded or super().trains(name)

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._loaded = True
        self.counts = {name: self.counts.get(name, 0) for name in self.masters}
        for moments in self.slots.values():
            moments.update({name: np.zeros_like(self.masters[name]) for name in self.recipe.frozen})


@fault("https://github.com/ahrefs/ocannl/issues/673", "optimizer.frozen")
class DecaysWhatIsFrozen(ReferenceTrainer):
    """Decoupled decay shrinks parameters that have no gradient."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        decay = float(getattr(self.recipe.optimizer, "weight_decay", 0.0))
        for name in self.recipe.frozen:
            self.masters[name] = self.masters[name] * (1.0 - rate * decay)


@fault("https://github.com/ahrefs/ocannl/issues/673", "optimizer.frozen")
class ClipsByTheNormOfAll(ReferenceTrainer):
    """The clipped norm has a share of the weights that are not trained, as if each had itself as gradient."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        constants = {name: self.masters[name] for name in self.recipe.frozen}
        return super().gradient_norm({**gradients, **constants})


@fault("https://github.com/pytorch/pytorch/issues/192202", "optimizer.frozen-later")
class LoadDropsTheMomentsOfConstants(ReferenceTrainer):
    """A load leaves out the moments of parameters that are not trained at the time."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        for moments in self.slots.values():
            moments.update({n: np.zeros_like(value) for n, value in moments.items() if not self.trains(n)})


@fault("https://github.com/neuralmagic/sparseml/issues/965", "optimizer.frozen-later")
class FreezingHasNoEffect(ReferenceTrainer):
    """A parameter that is frozen inside a run is trained on."""

    def freeze(self, names: Collection[str]) -> None:
        del names
