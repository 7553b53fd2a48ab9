"""Faults of float32 master weights and of the low-precision model that is cast from them."""

from __future__ import annotations

import numpy as np

from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/ao/pull/1124", "master.small-update-survives", "master.decay-survives")
class UpdatesTheLowWeights(ReferenceTrainer):
    """The weights that are updated have the low format, so that small updates are rounded away."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if self.scope.active:
            low = self.recipe.precision.format
            self.masters = {name: self.rounding.round(value, low) for name, value in self.masters.items()}


@fault("https://github.com/stillwater-sc/universal/issues/1133", "master.model-is-cast-of-master")
class ModelIsTruncated(ReferenceTrainer):
    """The model's weights are the masters with their low bits cut off instead of rounded."""

    def sync_masters(self) -> None:
        super().sync_masters()
        if self.recipe.precision.level == "O2":
            for name, value in self.masters.items():
                over = np.abs(self.values[name]) > np.abs(value)
                inner = self.rounding.round(value - (self.values[name] - value), self.formats[name])
                self.values[name] = np.where(over, inner, self.values[name])


@fault("https://github.com/PaddlePaddle/Paddle/pull/39121", "master.masters-survive-load")
class MastersAreRebuiltFromTheModel(ReferenceTrainer):
    """Masters are no part of a checkpoint; a load makes them from the model's low weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.masters = dict(self.values)


@fault("https://github.com/NVIDIA/apex/issues/480", "master.model-is-cast-of-master", "master.masters-survive-load")
class LoadsTheModelAlone(ReferenceTrainer):
    """A load brings the model's weights back and leaves the masters as they were."""

    def load_state(self, arrays: Arrays) -> None:
        masters = self.masters
        super().load_state(arrays)
        self.masters = masters
