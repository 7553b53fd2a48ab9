"""Faults of evaluation: which statistics it normalises by, and what it changes in a run that goes on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.core.network import Pass
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/Oneflow-Inc/oneflow/pull/6055", "autocast.evaluation-parity")
class RunningStatisticsSwapMomentum(ReferenceTrainer):
    """Running statistics keep the share that they should take in."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, 1.0 - momentum)


@fault("https://github.com/HomericIntelligence/Odyssey/issues/5532", "autocast.evaluation-parity")
class EvaluationOfStartingStatistics(ReferenceTrainer):
    """Evaluation normalises by the statistics that the run began with."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        start = self.model.buffers()
        return start[f"{path}.mean"].astype(np.float64), start[f"{path}.variance"].astype(np.float64)


@fault("https://github.com/wkentaro/pytorch-fcn/pull/56", "accumulation.evaluation-changes-nothing")
class StaysInEvaluationMode(ReferenceTrainer):
    """What trains after an evaluation normalises by the running statistics and drops nothing."""

    evaluated = False

    def predict(self, inputs: Array) -> Arrays:
        self.evaluated = True
        return super().predict(inputs)

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return super()._pass(parameters, training and not self.evaluated)


@fault("https://github.com/piergiaj/pytorch-i3d/issues/57", "accumulation.evaluation-changes-nothing")
class EvaluationEmptiesTheAccumulator(ReferenceTrainer):
    """Changing to evaluation sets the gathered gradients to zero."""

    def predict(self, inputs: Array) -> Arrays:
        self.window.gradients = {name: np.zeros_like(g) for name, g in self.window.gradients.items()}
        return super().predict(inputs)
