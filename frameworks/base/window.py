"""The window loop and the losses of an open window, for adapters whose training loop is the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fixtures.model import Batch, Window

T = TypeVar("T")


def over_window(window: Window, step: Callable[[Batch, int], T]) -> list[T]:
    """Takes a step with each micro-batch and the number of items of the whole window; what the steps return."""
    items = sum(batch.items for batch in window)
    return [step(batch, items) for batch in window]


@dataclass(frozen=True)
class MicroBatch:
    """The result of one micro-batch of an open window.

    Attributes:
        total: sum of the unscaled losses of its items.
        items: how many.
    """

    total: float
    items: int

    @property
    def loss(self) -> float:
        """Unscaled mean loss; NaN without items."""
        return self.total / self.items if self.items else math.nan


@dataclass(frozen=True)
class AppliedMicroBatch(MicroBatch):
    """A micro-batch of a window that the framework ends by itself.

    Attributes:
        scale_before: the loss scale that it met, 1.0 where there is none.
        applied: whether the framework made an update with it.
        rate: learning rate of that update, or of the one that it would have made.
    """

    scale_before: float = 1.0
    applied: bool = False
    rate: float = math.nan


M = TypeVar("M", bound=MicroBatch)


class LossLedger(Generic[M]):
    """The micro-batches of the open window, in order.

    Attributes:
        micro_batches: what each gave.
        items: how many items the whole window holds, those to come among them.
    """

    def __init__(self) -> None:
        self.micro_batches: list[M] = []
        self.items = 0

    def add(self, micro: M, items: int) -> float:
        """Records a micro-batch of a window of so many items; returns its mean loss."""
        self.micro_batches.append(micro)
        self.items = items
        return micro.loss

    def loss(self) -> float:
        """Unscaled loss of the window by its items; NaN where it is empty or has none."""
        if not self.micro_batches or not self.items:
            return math.nan
        return sum(micro.total for micro in self.micro_batches) / self.items

    def losses(self) -> tuple[float, ...]:
        """Unscaled mean loss of each micro-batch."""
        return tuple(micro.loss for micro in self.micro_batches)

    def replace(self, micro_batches: Sequence[M], items: int) -> None:
        """Replaces the micro-batches, by those of a checkpoint or by none after the end of a window."""
        self.micro_batches = list(micro_batches)
        self.items = items

    def empty(self) -> None:
        """Begins the next window."""
        self.replace((), 0)


def ending(window: Sequence[AppliedMicroBatch]) -> tuple[bool, float, float]:
    """The state of a window that the framework ends by itself.

    Returns:
        Whether it made an update; the loss scale at the window's beginning; the learning rate of the update, or of the
        one that the last micro-batch would have made.

    Raises:
        ValueError: there was no micro-batch.
    """
    if not window:
        raise ValueError("apply without any micro-batch before it")
    applied = [micro for micro in window if micro.applied]
    return bool(applied), window[0].scale_before, (applied or window)[-1].rate
