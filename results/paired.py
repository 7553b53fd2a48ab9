"""Whether one cost is larger than another: an interval of their ratio, never a bare percentage.

Two costs of one process are compared in pairs (`ratio`): sample i of one side was taken right next to sample i of the
other, in an order that varies, so that what disturbs the machine disturbs both. The estimate is the trimmed mean of the
pairs' log-ratios, which a few disturbed pairs hardly move; its interval is Student's, with the winsorized deviation
(Tukey & McLaughlin 1963; Wilcox 2012, section 4.3).

Times of two processes are not compared with each other at all: identical code differs by several percent between
processes, in every sample alike, so that no number of samples helps. What can be compared is how many times its control
each cost is (`between`): the control is work of the same framework in the same process that does without what is
measured, timed in pairs with it. The two sets of log-ratios are independent, so their trimmed means are compared by
Yuen's interval (Yuen 1974; Wilcox 2012, section 5.3).

docs/measuring.md has the rates of false alarms and of detection of both on recorded samples, from which the constants
here follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.99
"""Of the two-sided interval."""

SMALLEST = 0.01
"""Smallest change that is worth telling: the interval has to lie beyond it."""

FEWEST = 60
"""Fewest pairs that an interval is drawn from: with these, 5 % are found 19 times of 20 where a core is to spare."""

TRIMMED = 0.2
"""Share of the log-ratios that is left out at either end."""


LIKE = 1.25
"""How many times as long the control of one run may take as that of another one. Beyond it the two were not taken in
like circumstances: on a busy machine work that waits for memory slows down more than work that computes."""


UNPAIRED = "the samples vary and are not paired with a control's, and processes differ without any change"


@dataclass(frozen=True)
class Ratio:
    """Two sides of a cost.

    Attributes:
        old, new: medians, in the samples' unit.
        low, high: interval of new / old; equal where nothing that is kept varies.
        pairs: how many pairs there were, on the side that has fewer.
        refusal: why nothing can be said, in one sentence, or "".
    """

    old: float
    new: float
    low: float
    high: float
    pairs: int
    refusal: str = ""

    @property
    def judged(self) -> bool:
        """Whether anything can be said."""
        return not self.refusal

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
        if self.refusal:
            return self.refusal
        if self.low == self.high:
            return f"ratio {self.low:.4g}, without any spread"
        return f"ratio {self.low:.4g} to {self.high:.4g} ({CONFIDENCE:.0%} interval, {self.pairs} pairs)"


@dataclass(frozen=True)
class Cost:
    """Samples of a cost and, if it has a control, the control's sample that was taken next to each of them."""

    samples: Sequence[float]
    control: Sequence[float] = ()


def ratio(old: Sequence[float], new: Sequence[float], fewest: int = FEWEST) -> Ratio:
    """The ratio of two costs of one process, in pairs; what one side has more samples of is left out.

    A cost that is the same in every sample of a side (bytes that are counted, say) needs no more than one sample.

    Args:
        old, new: samples in any unit, sample i of one taken next to sample i of the other.
        fewest: fewest pairs that an interval is drawn from.
    """
    x, y = _pairs(old, new)
    pairs = len(x)
    medians = _middle(x), _middle(y)
    if pairs and np.array_equal(x, y, equal_nan=True):
        return Ratio(*medians, 1.0, 1.0, pairs)
    if refusal := _refusal(x, y):
        return Ratio(*medians, 1.0, 1.0, pairs, refusal)
    if (x == x[0]).all() and (y == y[0]).all():
        exact = float(y[0] / x[0])
        return Ratio(*medians, exact, exact, pairs)
    if pairs < fewest:
        return Ratio(*medians, 1.0, 1.0, pairs, _too_few(pairs, fewest))
    from scipy import stats  # takes most of a second, which a command without such costs does not pay

    low, high = np.exp(stats.mstats.trimmed_mean_ci(np.log(y / x), (TRIMMED, TRIMMED), alpha=1.0 - CONFIDENCE))
    return Ratio(*medians, float(low), float(high), pairs)


def between(old: Cost, new: Cost, fewest: int = FEWEST) -> Ratio:
    """The ratio of two costs of two processes, each in units of its process's control; what does not vary needs none.

    Nothing is said where the controls themselves took times that are not alike (`LIKE`).

    Args:
        old, new: samples in any unit, in pairs with their controls.
        fewest: fewest pairs of a side that an interval is drawn from.
    """
    varies = any(sample != side.samples[0] for side in (old, new) for sample in side.samples)
    if not varies or np.array_equal(old.samples, new.samples, equal_nan=True):
        return ratio(old.samples, new.samples, fewest)
    sides = [_pairs(side.control, side.samples) for side in (old, new)]
    pairs = min(len(samples) for _, samples in sides)
    medians = _middle(old.samples), _middle(new.samples)
    if not (len(old.control) and len(new.control)):
        return Ratio(*medians, 1.0, 1.0, pairs, UNPAIRED)
    if refusal := _refusal(*sides[0], *sides[1]) or (_too_few(pairs, fewest) if pairs < fewest else _unlike(*sides)):
        return Ratio(*medians, 1.0, 1.0, pairs, refusal)
    from scipy import stats

    x, y = (np.log(samples / control) for control, samples in sides)
    if all(np.ptp(stats.trimboth(side, TRIMMED)) == 0.0 for side in (x, y)):
        exact = float(np.exp(np.median(y) - np.median(x)))
        return Ratio(*medians, exact, exact, pairs)
    interval = stats.ttest_ind(y, x, equal_var=False, trim=TRIMMED).confidence_interval(CONFIDENCE)
    return Ratio(*medians, float(np.exp(interval.low)), float(np.exp(interval.high)), pairs)


def _pairs(one: Sequence[float], other: Sequence[float]) -> tuple[Values, Values]:
    count = min(len(one), len(other))
    return np.asarray(one[:count], dtype=np.float64), np.asarray(other[:count], dtype=np.float64)


def _middle(samples: Sequence[float] | Values) -> float:
    return float(np.median(samples)) if len(samples) else float("nan")


def _refusal(*sides: Values) -> str:
    if not all(len(side) for side in sides):
        return "there are no samples"
    if not all((np.isfinite(side) & (side > 0.0)).all() for side in sides):
        return "a sample is not a positive number"
    return ""


def _unlike(old: tuple[Values, Values], new: tuple[Values, Values]) -> str:
    times = _middle(new[0]) / _middle(old[0])
    if 1.0 / LIKE <= times <= LIKE:
        return ""
    return f"the control took {times:.3g} times as long: the machine was busy or another one, or all became slower"


def _too_few(pairs: int, fewest: int) -> str:
    return f"{pairs} pairs that vary are too few: {fewest} are needed"
