"""Faults of saving and loading that change more than they should, or leave a run incomplete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Precision, Recipe
from frameworks.base import of_same_class
from frameworks.contract import Conventions, Trainer
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/huggingface/accelerate/issues/4289", "resume.load-has-no-side-effects")
class LoadLeavesItsPrecisionScopeOpen(ReferenceTrainer):
    """The precision scope that a load opens for a warm-up forward pass stays open for the process."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        scope.enter(scope.Scope(Precision("O1", "bfloat16")))


@fault("https://github.com/pytorch/pytorch/issues/164929", "resume.save-has-no-side-effects", "resume.bit-identical")
class SaveMakesTheFirstStep(ReferenceTrainer):
    """A save before the first update steps on zero gradients at rate 0, which the optimizer's counters count."""

    def save(self, path: Path) -> None:
        if not any(self.counts.values()):
            self.apply_update({name: np.zeros_like(value) for name, value in self.masters.items()}, 0.0)
        super().save(path)


@fault("https://github.com/the-database/traiNNer-redux/pull/96", "resume.save-has-no-side-effects")
class SaveDropsTheOpenWindow(ReferenceTrainer):
    """Saving empties the accumulator of the run that goes on."""

    def save(self, path: Path) -> None:
        super().save(path)
        self.window.gradients.clear()


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", "resume.restored-is-complete", raises=True)
class ScaleIsMissingUntilTheFirstLoss(ReferenceTrainer):
    """A restored scaler has no scale before it has scaled a loss."""

    _restored = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._restored = True

    def scale_loss(self, loss: Tensor) -> Tensor:
        self._restored = False
        return super().scale_loss(loss)

    def scaler_state(self) -> Arrays:
        if self._restored:
            raise AttributeError("the scaler has no scale yet")
        return super().scaler_state()


@fault("https://github.com/jax-ml/jax/issues/37830", "resume.save-has-no-side-effects")
class SharesTheGivenWeights(ReferenceTrainer):
    """The weights that a run starts from are trained in place."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        self.given = weights or {}

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        for name, value in self.given.items():
            value[...] = self.masters[name]


# the state of another run


@fault("https://github.com/pytorch/pytorch/issues/196083", "resume.live-state")
class SharesTheMomentsItTook(ReferenceTrainer):
    """Moments that were taken from another run stay those of that run."""

    def take(self, other: Trainer) -> None:
        super().take(other)
        self.slots = of_same_class(self, other).slots


@fault("https://github.com/dotnet/TorchSharp/issues/1172", "resume.live-state")
class SharesTheWeightsItTook(ReferenceTrainer):
    """Weights that were taken from another run are that run's."""

    def take(self, other: Trainer) -> None:
        super().take(other)
        given = of_same_class(self, other)
        self.masters, self.values = given.masters, given.values
