"""Whether one cost is larger than another: an interval of their ratio, never a bare percentage.

Two costs of one process are compared in pairs (`ratio`): sample i of one side was taken right next to sample i of the
other, in an order that varies, so that what disturbs the machine disturbs both. The estimate is the trimmed mean of the
pairs' log-ratios, which a few disturbed pairs hardly move; its interval is Student's, with the winsorized deviation
(Tukey & McLaughlin 1963; Wilcox 2012, section 4.3).

Times of two processes are not compared with each other at all: identical code differs by several percent between
processes, in every sample alike, so that no number of samples helps, and on a busy machine by more (docs/race.md
has what the rules for that give).

docs/race.md has the rates of false alarms and of detection on recorded samples, from which the constants here
follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.99
"""Of the two-sided interval."""

SMALLEST = 0.01
"""Smallest change that counts: the interval has to lie beyond it."""

FEWEST = 60
"""Fewest pairs that an interval is drawn from: with these, 5 % are found 19 times of 20 where a core is to spare."""

TRIMMED = 0.2
"""Share of the log-ratios that is trimmed at either end."""


@dataclass(frozen=True)
class Ratio:
    """Two sides of a cost.

    Attributes:
        old, new: medians, in the samples' unit.
        low, high: interval of new / old; equal if the samples do not vary.
        pairs: how many pairs there were, on the side that has fewer.
        refusal: why there is no ratio, in one sentence, or "".
    """

    old: float
    new: float
    low: float
    high: float
    pairs: int
    refusal: str = ""

    @property
    def judged(self) -> bool:
        """Return whether there is a ratio."""
        return not self.refusal

    @property
    def grew(self) -> bool:
        """Return whether the new cost is larger, beyond chance and by more than is negligible."""
        return self.judged and self.low > 1.0 + SMALLEST

    @property
    def shrank(self) -> bool:
        """Return whether the new cost is smaller, beyond chance and by more than is negligible."""
        return self.judged and self.high < 1.0 / (1.0 + SMALLEST)

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.refusal:
            return self.refusal
        if self.low == self.high:
            return f"ratio {self.low:.4g}, without any spread"
        return f"ratio {self.low:.4g} to {self.high:.4g} ({CONFIDENCE:.0%} interval, {self.pairs} pairs)"


def ratio(old: Sequence[float], new: Sequence[float], fewest: int = FEWEST) -> Ratio:
    """The ratio of two costs of one process, in pairs; what one side has more samples of is left out.

    A cost that is the same in every sample of a side (bytes that are counted, say) needs no more than one sample.

    Args:
        old, new: samples in any unit, sample i of one taken next to sample i of the other.
        fewest: fewest pairs that an interval is drawn from.
    """
    x, y = in_pairs(old, new)
    pairs = len(x)
    medians = _median(x), _median(y)
    if pairs and np.array_equal(x, y, equal_nan=True):
        return Ratio(*medians, 1.0, 1.0, pairs)
    if refusal := refusal_of(x, y):
        return Ratio(*medians, 1.0, 1.0, pairs, refusal)
    if (x == x[0]).all() and (y == y[0]).all():
        with np.errstate(over="ignore"):
            exact = float(y[0] / x[0])
        return Ratio(*medians, exact, exact, pairs)
    if pairs < fewest:
        return Ratio(*medians, 1.0, 1.0, pairs, f"{pairs} pairs that vary are too few: {fewest} are needed")
    from scipy import stats  # takes most of a second, which a command without such costs does not pay

    logarithms = np.log(y) - np.log(x)
    with np.errstate(over="ignore"):
        low, high = np.exp(stats.mstats.trimmed_mean_ci(logarithms, (TRIMMED, TRIMMED), alpha=1.0 - CONFIDENCE))
    return Ratio(*medians, float(low), float(high), pairs)


def in_pairs(one: Sequence[float], other: Sequence[float]) -> tuple[Values, Values]:
    """Both sides as arrays of the shorter length."""
    count = min(len(one), len(other))
    return np.asarray(one[:count], dtype=np.float64), np.asarray(other[:count], dtype=np.float64)


def _median(samples: Values) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.median(samples)) if len(samples) else float("nan")


def refusal_of(*sides: Values) -> str:
    """Return why no ratio can be formed of these samples, in one sentence, or ""."""
    if not all(len(side) for side in sides):
        return "there are no samples"
    if not all((np.isfinite(side) & (side > 0.0)).all() for side in sides):
        return "a sample is not a positive number"
    return ""
