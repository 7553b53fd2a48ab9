"""Comparison of two costs by a confidence interval of their ratio.

Two costs of one process are compared in pairs (`ratio`): sample i of one side was taken right next to sample i of the
other, in an order that varies, so that disturbances of the machine affect both. The estimate is the trimmed mean of the
pairs' log-ratios, which a few disturbed pairs hardly change; its interval is Student's, with the winsorized deviation
(Tukey & McLaughlin 1963; Wilcox 2012, section 4.3).

Times of two processes are not compared with each other: between processes, identical code differs by several percent in
all samples alike, so more samples do not help; on a busy machine it differs by more.

docs/race.md gives the rates of false alarms and of detection on recorded samples, from which the constants in this
module follow, and the results of rules for two processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.99
"""Confidence of the two-sided interval."""

SMALLEST = 0.01
"""Smallest relative change that counts: the whole interval must lie beyond it."""

FEWEST = 60
"""Smallest number of pairs for an interval; with it, a change of 5 % is found 19 times of 20 if a core is free."""

TRIMMED = 0.2
"""Share of the log-ratios that is trimmed at each end."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of two costs.

    Attributes:
        old, new: medians, in the samples' unit.
        low, high: interval of new / old; equal if the samples do not vary.
        pairs: number of pairs: the smaller number of samples of the two sides.
        refusal: the reason why there is no ratio, in one sentence, or "".
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
    """Return the ratio of two costs of one process, in pairs; samples without a partner are left out.

    A cost that is the same in every sample of a side (bytes that are counted, say) needs no more than one sample.

    Args:
        old, new: samples in any unit, sample i of one taken next to sample i of the other.
        fewest: smallest number of pairs for an interval.
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
    """Return both sides as arrays, cut to the shorter length."""
    count = min(len(one), len(other))
    return np.asarray(one[:count], dtype=np.float64), np.asarray(other[:count], dtype=np.float64)


def _median(samples: Values) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.median(samples)) if len(samples) else float("nan")


def refusal_of(*sides: Values) -> str:
    """Return why these samples have no ratio, in one sentence, or ""."""
    if not all(len(side) for side in sides):
        return "there are no samples"
    if not all((np.isfinite(side) & (side > 0.0)).all() for side in sides):
        return "a sample is not a positive number"
    return ""
