"""Held-out faults of accumulation: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from typing import Any

from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "accumulation.bytes-flat-in-k")
class AccumulatorCountsAsSaved(ReferenceTrainer):
    """Inside a window the bytes held for backward include the accumulator's."""

    def saved_bytes(self, batch: Any) -> int:
        return super().saved_bytes(batch) + sum(array.nbytes for array in self.accumulator().values())
