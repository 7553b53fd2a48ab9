"""Statistics of dropout masks: the number of kept values, and when two masks are equal by chance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fixtures.arrays import Array

TELLING = 40.0
"""Random bits of a mask beyond which two masks are equal with probability below 1e-12."""
DEVIATIONS = 6.0
"""Standard deviations by which the kept share may be off: chance exceeds it once in 500 million."""


@dataclass
class Shares:
    """Number of kept values, and its excess over the expected number.

    Zeros count like all other values: a mask is not the zero pattern of the output.
    """

    deviation: float = 0.0
    variance: float = 0.0

    def add(self, rate: float, mask: Array) -> None:
        """Counts a mask."""
        self.deviation += float(mask.sum()) - mask.size * (1.0 - rate)
        self.variance += mask.size * rate * (1.0 - rate)

    def off(self) -> str | None:
        """The problem with the kept shares; "" if chance explains them."""
        allowed = DEVIATIONS * float(np.sqrt(self.variance)) + 1.0
        if abs(self.deviation) <= allowed:
            return None
        return (
            f"deviation of the number of kept values: got {self.deviation:+.0f}, want at most {allowed:.0f} by chance"
        )


@dataclass(frozen=True)
class ObservedMask:
    """The mask of the dropout at a path in one pass; `place` is the verb's."""

    place: int
    path: str
    rate: float
    mask: Array

    def telling(self, values: int) -> bool:
        """Whether masks of so many values practically never coincide by chance."""
        keep_rate = 1.0 - self.rate
        return -values * math.log2(keep_rate**2 + self.rate**2) >= TELLING

    @property
    def repeats_itself(self) -> bool:
        """Whether two samples or positions have the same mask, which is not by chance."""
        rows, width = self.mask.reshape(-1, self.mask.shape[-1]), self.mask.shape[-1]
        return self.telling(width) and any(np.array_equal(a, b) for a, b in combinations(rows, 2))


def readable(masks: list[tuple[str, float, Array]]) -> Iterator[tuple[str, float, Array]]:
    """Those that a gradient got back to: not what lies before a dropout that kept nothing."""
    for place, each in enumerate(masks):
        if all(later.any() for _, _, later in masks[place + 1 :]):
            yield each


def repeated(masks: list[ObservedMask], alone: bool) -> tuple[int, str, str] | None:
    """The first mask that repeats another one, complements it, or repeats one of its own rows."""
    for each in masks if alone else ():
        if each.repeats_itself:
            text = f"the mask of layer {each.path} is the same for two samples or positions"
            return each.place, "repeated", text
    for one, other in combinations(masks, 2):
        if one.mask.shape != other.mask.shape or not (one.telling(one.mask.size) and other.telling(one.mask.size)):
            continue
        for word, mask in (("the mask", one.mask), ("the opposite of the mask", ~one.mask)):
            if np.array_equal(mask, other.mask):
                text = f"the mask of layer {other.path} is {word} that layer {one.path} had before"
                return other.place, "repeated", text
    return None
