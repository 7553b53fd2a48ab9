"""Faults that were thought up after the clauses were frozen, for invariants and not for tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Update
from frameworks.reference.decisions import Arrays
from frameworks.reference.ops import Operations
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault


@fault(
    "https://github.com/huggingface/transformers/issues/581",
    component="clipping",
    clauses=("composition.pairs",),
)
class ClipsEachParameterAlone(ReferenceTrainer):
    """The norm that clipping compares is each parameter's own."""

    def clip(self, gradients: Arrays) -> Arrays:
        return {k: v for name, g in gradients.items() for k, v in super(type(self), self).clip({name: g}).items()}


@fault(
    "https://github.com/HomebrewML/HeavyBall/issues/72",
    component="clipping",
    clauses=("accumulation.clips-only-what-is-larger",),
)
class ClippingScalesUp(ReferenceTrainer):
    """Gradients below the clipping norm are scaled up to it."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        factor = self.recipe.clip / max(self.gradient_norm(gradients), 1e-30)
        return {name: g * factor for name, g in gradients.items()}


@fault(
    "https://github.com/facebookresearch/ParlAI/pull/1400",
    component="schedule",
    clauses=("composition.pairs",),
)
class ScheduleOneUpdateLate(ReferenceTrainer):
    """The schedule's boundaries are passed one update late."""

    def learning_rate(self) -> float:
        factor = 1.0 if self.recipe.schedule is None else self.recipe.schedule.factor(max(0, self.schedule - 1))
        return self.recipe.optimizer.learning_rate * factor


@fault(
    "https://github.com/lmjohns3/theanets/pull/123",
    component="dropout",
    clauses=("autocast.dropout-scales-what-it-keeps",),
)
class DropoutDividesByTheRate(Operations):
    """Kept values are divided by the rate instead of by what it leaves."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        return super().dropout(x, mask, 1.0 - rate)


@fault(
    "https://github.com/Oneflow-Inc/oneflow/pull/6055",
    component="batch norm",
    clauses=("autocast.evaluation-parity",),
)
class RunningStatisticsSwapMomentum(ReferenceTrainer):
    """Running statistics keep the share that they should take in."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, 1.0 - momentum)


@fault(
    "https://github.com/HomericIntelligence/Odyssey/issues/5532",
    component="batch norm",
    clauses=("autocast.evaluation-parity",),
)
class EvaluationOfStartingStatistics(ReferenceTrainer):
    """Evaluation normalises by the statistics that the run began with."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        start = self.model.buffers()
        return start[f"{path}.mean"].astype(np.float64), start[f"{path}.variance"].astype(np.float64)


@fault(
    "https://github.com/allenai/allennlp/pull/4706",
    component="accumulation",
    clauses=("accumulation.equals-full-batch",),
)
class ReportsTheLastMicroBatch(ReferenceTrainer):
    """The loss of a window is that of its last micro-batch."""

    def apply(self) -> Update:
        made = super().apply()
        return replace(made, loss=made.micro_losses[-1] if made.micro_losses else made.loss)
