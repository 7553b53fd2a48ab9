"""Held-out faults of laws: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/google-research/vision_transformer/issues/286", component="dropout", clauses=("laws.masks",))
class OneKeyForTheWindow(ReferenceTrainer):
    """The random key of dropout is split once an update, so that all micro-batches of a window draw the same masks."""

    _opened = 0

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        if self.window.micro_batches:
            self.draws = self._opened
        else:
            self._opened = self.draws
        return super().passed(batch, items)


@fault("https://github.com/Dao-AILab/flash-attention/issues/314", component="dropout", clauses=("laws.masks",))
class SequenceDropoutStandsStill(ReferenceTrainer):
    """Dropout on sequences reads the random stream without moving it, so that the next dropout draws the same mask."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        if len(shape) == 3:
            self.draws -= 1
        return mask
