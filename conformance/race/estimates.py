"""How many times the old version a cost of the new one is: rounds within pairs of processes, then pairs.

Identical code differs between processes, in all of their rounds alike, so pairs and not rounds are the sample. A
pair's estimate is the 20 % trimmed mean of the log-ratios of its rounds, which took turns; of a cost that a process has
once it is that log-ratio. The estimate is the mean over pairs, and its 99 % interval is Student's (Student 1908), as in
a hierarchical model in which each pair has equally many rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.compare.ratio import CONFIDENCE, TRIMMED, in_pairs, refusal_of

FEWEST = 5
"""Fewest pairs of processes."""


@dataclass(frozen=True)
class PairInterval:
    """The ratio of two sides.

    Attributes:
        estimate, low, high: of new / old; NaN with a refusal.
        pairs: number of pairs.
        refusal: why there is no ratio, in one sentence, or "".
    """

    estimate: float
    low: float
    high: float
    pairs: int
    refusal: str = ""

    def __str__(self) -> str:
        if self.refusal:
            return self.refusal
        return f"{self.estimate:.4g} ({self.low:.4g} to {self.high:.4g}, {self.pairs} pairs of processes)"


def of_rounds(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> PairInterval:
    """The ratio of costs that were measured in rounds; sample i of a pair's sides is of round i.

    A cost that a process has once is one round.
    """
    logs = []
    for before, after in zip(old, new, strict=True):
        x, y = in_pairs(before, after)
        if refusal := refusal_of(x, y):
            return _refused(len(old), refusal)
        logs.append(_trimmed(np.log(y) - np.log(x)))
    return _over_pairs(logs)


def _trimmed(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    ordered = np.sort(values)
    left = int(TRIMMED * len(ordered))
    return float(ordered[left : len(ordered) - left].mean())


def _over_pairs(logs: Sequence[float]) -> PairInterval:
    pairs = len(logs)
    if pairs < FEWEST:
        return _refused(pairs, f"{pairs} pairs of processes are too few: {FEWEST} are needed")
    from scipy.special import stdtrit  # takes a part of a second

    values = np.asarray(logs)
    middle, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(pairs)
    reach = float(stdtrit(pairs - 1, 0.5 + CONFIDENCE / 2.0)) * error
    return PairInterval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), pairs)


def _refused(pairs: int, why: str) -> PairInterval:
    return PairInterval(math.nan, math.nan, math.nan, pairs, why)
