"""Faults of incomplete windows."""

from __future__ import annotations

from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/espnet/espnet/pull/3283", "accumulation.bad-window-is-forgotten")
class IncompleteOverflowStaysInTheAccumulator(ReferenceTrainer):
    """The accumulator is not emptied after an incomplete window that had a non-finite micro-batch."""

    def empty_accumulator(self) -> None:
        window = self.window
        super().empty_accumulator()
        if window.micro_batches < self.recipe.accumulation and self.has_nonfinite(window.gradients):
            self.window.gradients = window.gradients
