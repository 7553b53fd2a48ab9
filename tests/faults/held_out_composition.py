"""Held-out faults of composition: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import SGD
from frameworks.reference.decisions import Arrays
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/186444", component="composition", clauses=("composition.pairs",))
class ZeroRateGivesNan(ReferenceTrainer):
    """Adam divides by its step size, so at a learning rate of zero a weight without a second moment becomes NaN."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if rate == 0.0 and "second_moment" in self.slots:
            for name in gradients:
                still = self.slots["second_moment"][name] == 0.0
                self.masters[name] = np.where(still, np.nan, self.masters[name])


@fault("https://github.com/PaddlePaddle/Paddle/pull/78891", component="composition", clauses=("composition.pairs",))
class RateInWeightsFormat(ReferenceTrainer):
    """Gradient descent rounds its learning rate to the low format of the weights, where a small one becomes 0."""

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        precision = self.recipe.precision
        if precision.level == "O3" and isinstance(self.recipe.optimizer, SGD):
            rate = self.rounding.constant(rate, precision.format)
        super().apply_update(gradients, rate)
