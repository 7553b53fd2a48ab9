"""Held-out faults of master: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from fixtures.arrays import Array
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/X-GenGroup/Flow-Factory/pull/186", "master.average-is-evaluated")
class AverageMeetsStaleCasts(ReferenceTrainer):
    """At O1, an evaluation with the average right after one without it uses the casts that the other left behind."""

    evaluated_at = -1

    def predict(self, inputs: Array) -> Arrays:
        self.evaluated_at = self.steps
        return super().predict(inputs)

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.precision.level == "O1" and self.recipe.average is not None and self.evaluated_at == self.steps:
            return super().predict(inputs)
        return super().predict_averaged(inputs)
