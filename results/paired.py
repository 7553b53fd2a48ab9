"""Whether one list of cost samples is larger than another: a bootstrap interval of the ratio, never a bare percentage.

Sample i of one side is paired with sample i of the other, so measure both sides in turn: what disturbs the machine then
disturbs both samples of a pair. The estimate is the trimmed mean of the pairs' log-ratios, which a few disturbed pairs
hardly move, and its interval is the percentile bootstrap's (Efron & Tibshirani 1993, chapter 13; trimmed mean: Wilcox
2012, section 4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.99
"""Of the two-sided interval: on identical code one side is left by chance in 0.5 % of comparisons."""

SMALLEST = 0.01
"""Smallest change that is worth telling: the interval has to lie beyond it."""

FEWEST = 20
"""Fewest pairs that an interval is drawn from."""

MOST = 2000
"""Most pairs that an interval is drawn from, the first ones: more would need gigabytes and tell nothing new."""

TRIMMED = 0.2
RESAMPLES = 4999


@dataclass(frozen=True)
class Ratio:
    """Two sides of a cost.

    Attributes:
        old, new: medians, in the samples' unit.
        low, high: interval of new / old; equal where neither side varies.
        pairs: how many pairs there were.
        judged: whether there were enough of them.
    """

    old: float
    new: float
    low: float
    high: float
    pairs: int
    judged: bool = True

    @property
    def grew(self) -> bool:
        """Whether the new cost is larger, beyond chance and by more than is negligible."""
        return self.judged and self.low > 1.0 + SMALLEST

    @property
    def shrank(self) -> bool:
        """Whether the new cost is smaller, beyond chance and by more than is negligible."""
        return self.judged and self.high < 1.0 / (1.0 + SMALLEST)

    @property
    def told(self) -> str:
        """One sentence."""
        if not self.judged:
            return f"{self.pairs} pairs that vary are too few: {FEWEST} are needed"
        if self.low == self.high:
            return f"ratio {self.low:.4g}, without any spread"
        return f"ratio {self.low:.4g} to {self.high:.4g} ({CONFIDENCE:.0%} interval, {self.pairs} pairs)"


def ratio(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """The ratio of two costs, in pairs; what one side has more samples of is left out, and so is
    what goes beyond `MOST`.

    A cost that is the same in every sample of a side (bytes that are counted, say) needs no more than one sample.
    """
    pairs = min(len(old), len(new), MOST)
    x, y = (np.asarray(side[:pairs], dtype=np.float64) for side in (old, new))
    if not pairs or not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        same = pairs > 0 and bool(np.array_equal(x, y, equal_nan=True))
        middle = [float(np.median(side)) if pairs else float("nan") for side in (x, y)]
        return Ratio(middle[0], middle[1], 1.0, 1.0, pairs, judged=same)
    medians = float(np.median(x)), float(np.median(y))
    if (x == x[0]).all() and (y == y[0]).all():
        exact = float(y[0] / x[0])
        return Ratio(*medians, exact, exact, pairs)
    if pairs < FEWEST:
        return Ratio(*medians, 1.0, 1.0, pairs, judged=False)
    interval = stats.bootstrap(
        (np.log(y) - np.log(x),),
        lambda values, axis: stats.trim_mean(values, TRIMMED, axis=axis),
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Ratio(*medians, float(np.exp(interval.low)), float(np.exp(interval.high)), pairs)
