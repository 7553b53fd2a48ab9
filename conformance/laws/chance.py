"""What chance explains of dropout's masks: how many values are kept, and when two masks are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fixtures.arrays import Array

TELLING = 40.0
"""Bits of chance in a mask: one of so many is another one's by chance once in 10^12."""
DEVIATIONS = 6.0
"""How many standard deviations the share that is kept may be off: by chance it is once in 500 million."""


@dataclass
class Shares:
    """How many values were kept, and by how many that is more than their rates say.

    Values that are zero are counted like all others: a mask is not what is zero of the output.
    """

    deviation: float = 0.0
    variance: float = 0.0

    def add(self, rate: float, mask: Array) -> None:
        """Counts a mask."""
        self.deviation += float(mask.sum()) - mask.size * (1.0 - rate)
        self.variance += mask.size * rate * (1.0 - rate)

    def off(self) -> str | None:
        """What is wrong with the shares, if they are beyond chance."""
        allowed = DEVIATIONS * float(np.sqrt(self.variance)) + 1.0
        if abs(self.deviation) <= allowed:
            return None
        return (
            f"dropout keeps {self.deviation:+.0f} values more than its rates say, where chance explains {allowed:.0f}"
        )


@dataclass(frozen=True)
class ShownMask:
    """A mask that a pass shows, of the dropout at a path; `place` is the verb's."""

    place: int
    path: str
    rate: float
    mask: Array

    def telling(self, values: int) -> bool:
        """Whether no two masks of so many values are the same by chance."""
        kept = 1.0 - self.rate
        return -values * math.log2(kept**2 + self.rate**2) >= TELLING

    @property
    def repeats_itself(self) -> bool:
        """Whether two samples or places have the same values, which is no chance."""
        rows, width = self.mask.reshape(-1, self.mask.shape[-1]), self.mask.shape[-1]
        return self.telling(width) and any(np.array_equal(a, b) for a, b in combinations(rows, 2))


def readable(masks: list[tuple[str, float, Array]]) -> Iterator[tuple[str, float, Array]]:
    """Those that a gradient got back to: not what lies before a dropout that kept nothing."""
    for place, each in enumerate(masks):
        if all(later.any() for _, _, later in masks[place + 1 :]):
            yield each


def repeated(seen: list[ShownMask], alone: bool) -> tuple[int, str, str] | None:
    """The first mask that is another one, what another one leaves out, or one row of it over and over."""
    for each in seen if alone else ():
        if each.repeats_itself:
            text = f"the mask of layer {each.path} has the same values for two samples or places"
            return each.place, "repeated", text
    for one, other in combinations(seen, 2):
        if one.mask.shape != other.mask.shape or not (one.telling(one.mask.size) and other.telling(one.mask.size)):
            continue
        for word, mask in (("the mask", one.mask), ("the opposite of the mask", ~one.mask)):
            if np.array_equal(mask, other.mask):
                text = f"the mask of layer {other.path} is {word} that layer {one.path} had before"
                return other.place, "repeated", text
    return None
