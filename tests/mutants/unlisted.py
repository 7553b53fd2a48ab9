"""Faults that were thought up after the clauses were frozen, for invariants and not for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.contract import Conventions, Update
from frameworks.reference.decisions import Arrays
from frameworks.reference.network import Pass
from frameworks.reference.operations import Operations
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


@fault(
    "https://github.com/pytorch/ao/pull/4915",
    component="optimizer state",
    clauses=("master.counts-every-update",),
)
class CountsInBfloat16(ReferenceTrainer):
    """The count that Adam's bias correction reads stands still at 256."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.counts = {name: min(count, 255) for name, count in self.counts.items()}


@fault(
    "https://github.com/wkentaro/pytorch-fcn/pull/56",
    component="evaluation",
    clauses=("accumulation.evaluation-changes-nothing",),
)
class StaysInEvaluationMode(ReferenceTrainer):
    """What trains after an evaluation normalises by the running statistics and drops nothing."""

    evaluated = False

    def predict(self, inputs: Array) -> Arrays:
        self.evaluated = True
        return super().predict(inputs)

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return super()._pass(parameters, training and not self.evaluated)


@fault(
    "https://github.com/karpathy/nanochat/pull/623",
    component="normalisation",
    clauses=("accumulation.weighs-items",),
)
class EmptyMicroBatchIsNaN(ReferenceTrainer):
    """A micro-batch in which no token counts divides nothing by nothing."""

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        if not batch.items:
            self.window.gradients = {n: np.full_like(g, np.nan) for n, g in self.window.gradients.items()}
        return loss


@fault(
    "https://github.com/pytorch/pytorch/issues/28294",
    component="optimizer state",
    clauses=("scaling.tolerates-missing-gradients",),
)
class MissingGradientsAreZero(ReferenceTrainer):
    """A parameter without a gradient is updated as if its gradient were zero: its moments move it."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update({**{n: np.zeros_like(v) for n, v in self.masters.items()}, **gradients}, rate)


@fault(
    "https://github.com/NVlabs/stylegan2-ada-pytorch/issues/108",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class SecondOptimizerIsNotLoaded(ReferenceTrainer):
    """A load brings back the moments of the first optimizer only."""

    def load_state(self, arrays: Arrays) -> None:
        kept = {slot: dict(values) for slot, values in self.slots.items()}
        super().load_state(arrays)
        for slot, values in self.slots.items():
            values.update({name: kept[slot][name] for name in values if self.optimizer_of(name)})


@fault(
    "https://github.com/jax-ml/jax/issues/37830",
    component="memory",
    clauses=("resume.save-has-no-side-effects",),
)
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
