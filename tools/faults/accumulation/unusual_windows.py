"""Faults of windows that are not all alike: empty ones, incomplete ones, long ones, and those of another run."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Update
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault(
    "https://github.com/KellerJordan/Muon/issues/54", component="accumulator", clauses=("accumulation.empty-window",)
)
class EmptyWindowAfterASkipSteps(ReferenceTrainer):
    """A window without a micro-batch that follows a skipped update is applied with gradients of zero: moments decay and
    weights move."""

    last_skipped = False

    def apply(self) -> Update:
        if not self.window.micro_batches and self.last_skipped:
            self.window_takes({name: np.zeros_like(w) for name, w in self.masters.items() if self.trains(name)}, 1)
        update = super().apply()
        self.last_skipped = update.skipped
        return update


@fault(
    "https://github.com/espnet/espnet/pull/3283",
    component="accumulator",
    clauses=("accumulation.bad-window-is-forgotten",),
)
class IncompleteOverflowStaysInTheAccumulator(ReferenceTrainer):
    """The accumulator is not emptied after an incomplete window that had a non-finite micro-batch."""

    def empty_accumulator(self) -> None:
        window = self.window
        super().empty_accumulator()
        if window.micro_batches < self.recipe.accumulation and self.has_nonfinite(window.gradients):
            self.window.gradients = window.gradients


@fault("", component="accumulator", clauses=("accumulation.weighs-items",))
class ItemsAreCountedInTheScopesFormat(ReferenceTrainer):
    """At level O1 the number of items that a window's loss is divided by is rounded to the compute format: above 2,048
    tokens in float16 and above 256 in bfloat16 most numbers become another one."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        if self.recipe.precision.level == "O1":
            counted = np.asarray(min(window_items, 65504), np.float64)
            window_items = int(self.rounding.round(counted, self.recipe.precision.format))
        return super().normalise(loss, batch_items, window_items)


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/70508",
    component="accumulator",
    clauses=("accumulation.keeps-precision",),
)
class RecomputedGradientsAddUpInTheirFormat(ReferenceTrainer):
    """With recomputation the wide accumulators get lost, and gradients add up in the format of their weights."""

    def accumulator_format(self, name: str) -> str:
        return super().accumulator_format(name) if self.recipe.recompute is None else self.formats[name]


@fault("", component="dropout", clauses=("composition.two-runs-in-a-process",))
class OpenWindowsShareAStream(ReferenceTrainer):
    """While another run has an open window, dropout draws from a stream that both runs move."""

    runs: ClassVar[WeakSet[ReferenceTrainer]] = WeakSet()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.runs.add(self)

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        own = self.draws
        self.draws += sum(run.draws for run in self.runs if run is not self and run.window.micro_batches)
        try:
            return super().draw_mask(shape, rate)
        finally:
            self.draws = own + 1
