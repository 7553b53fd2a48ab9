"""How often each segment of a network has begun, counted also where a compiled forward pass runs no Python of ours."""

from __future__ import annotations

from itertools import count
from weakref import WeakValueDictionary

import torch

_NUMBERS = count()


class SegmentCalls:
    """A count for each segment; `number` is how the operator of compiled forward passes finds it."""

    def __init__(self, segments: int) -> None:
        self.counts = [0] * segments
        self.number = next(_NUMBERS)
        _OF_NUMBER[self.number] = self


_OF_NUMBER: WeakValueDictionary[int, SegmentCalls] = WeakValueDictionary()


@torch.library.custom_op("conformance::segment_begins", mutates_args=())
def segment_begins(x: torch.Tensor, number: int, index: int) -> torch.Tensor:
    """A copy of a segment's input; each time a compiled graph runs this operator, the segment is counted."""
    _OF_NUMBER[number].counts[index] += 1
    return x.clone()


@segment_begins.register_fake
def _(x: torch.Tensor, number: int, index: int) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def _passed_on(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ARG001
    return gradient, None, None


segment_begins.register_autograd(_passed_on)
