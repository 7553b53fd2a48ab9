"""Keras' report of a micro-batch, as a run and its checkpoints keep it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from fixtures.arrays import Array
from frameworks.base import AppliedMicroBatch


@dataclass(frozen=True)
class KerasMicroBatch(AppliedMicroBatch):
    """The framework's report of one micro-batch.

    Attributes:
        scale_after: the loss scale after it, 1 without scaling.
        good_steps: the scaler's counter after it, -1 without one.
        mean: unscaled mean loss where Keras itself takes the mean, NaN elsewhere.
    """

    scale_after: float = 1.0
    good_steps: int = -1
    mean: float = math.nan

    @property
    def loss(self) -> float:
        return super().loss if math.isnan(self.mean) else self.mean


COLUMNS = len(fields(KerasMicroBatch))
"""Numbers of a micro-batch in a checkpoint."""


def rows_of(micro_batches: Sequence[KerasMicroBatch]) -> Array:
    """(micro-batches, COLUMNS), float64."""
    return np.array([astuple(micro) for micro in micro_batches], np.float64).reshape(-1, COLUMNS)


def micro_batches_of(rows: Iterable[Sequence[float]]) -> list[KerasMicroBatch]:
    """The micro-batches of `rows_of`."""
    return [
        KerasMicroBatch(total, int(items), before, bool(applied), rate, after, int(good), mean)
        for total, items, before, applied, rate, after, good, mean in (map(float, row) for row in rows)
    ]
