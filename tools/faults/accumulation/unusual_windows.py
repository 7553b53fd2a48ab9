"""Faults of windows that are not all alike: empty ones and incomplete ones."""

from __future__ import annotations

import numpy as np

from frameworks.contract import Update
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
