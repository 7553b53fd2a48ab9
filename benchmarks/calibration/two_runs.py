"""Times of two runs, each in multiples of its own control: the rule that the suite does not use any more.

Old and new samples come from two processes, which differ by several percent without any change in the code. Compared is
how many times its control each cost is; the control is work of the same framework in the same process, timed in pairs
with it. The two sets of log-ratios are independent, so their trimmed means are compared by Yuen's interval (Yuen 1974;
Wilcox 2012, section 5.3). On samples that were recorded for the purpose it raised no false alarm; in the suites' own
records, on machines that others used as well, it did (docs/measuring.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from results.compare.ratio import (
    CONFIDENCE,
    FEWEST,
    TRIMMED,
    Ratio,
    Values,
    in_pairs,
    middle,
    ratio,
    refusal_of,
    too_few,
)

LIKE = 1.25
"""How many times as long the control of one run may take as that of another one. Beyond it the two were not taken in
like circumstances: on a busy machine work that waits for memory slows down more than work that computes."""

UNPAIRED = "the samples vary and are not paired with a control's, and processes differ without any change"


@dataclass(frozen=True)
class PairedCost:
    """Samples of a cost and, if it has a control, the control's sample that was taken next to each of them."""

    samples: Sequence[float]
    control: Sequence[float] = ()


def between(old: PairedCost, new: PairedCost, fewest: int = FEWEST) -> Ratio:
    """The ratio of two costs of two processes, each in units of its process's control; what does not vary needs none.

    Nothing is said where the controls themselves took times that are not alike (`LIKE`).

    Args:
        old, new: samples in any unit, in pairs with their controls.
        fewest: fewest pairs of a side that an interval is drawn from.
    """
    varies = any(sample != side.samples[0] for side in (old, new) for sample in side.samples)
    if not varies or np.array_equal(old.samples, new.samples, equal_nan=True):
        return ratio(old.samples, new.samples, fewest)
    sides = [in_pairs(side.control, side.samples) for side in (old, new)]
    pairs = min(len(samples) for _, samples in sides)
    medians = middle(old.samples), middle(new.samples)
    if not (len(old.control) and len(new.control)):
        return Ratio(*medians, 1.0, 1.0, pairs, UNPAIRED)
    if refusal := refusal_of(*sides[0], *sides[1]) or (too_few(pairs, fewest) if pairs < fewest else _unlike(*sides)):
        return Ratio(*medians, 1.0, 1.0, pairs, refusal)
    x, y = (np.log(samples / control) for control, samples in sides)
    if all(np.ptp(stats.trimboth(side, TRIMMED)) == 0.0 for side in (x, y)):
        exact = float(np.exp(np.median(y) - np.median(x)))
        return Ratio(*medians, exact, exact, pairs)
    interval = stats.ttest_ind(y, x, equal_var=False, trim=TRIMMED).confidence_interval(CONFIDENCE)
    return Ratio(*medians, float(np.exp(interval.low)), float(np.exp(interval.high)), pairs)


def _unlike(old: tuple[Values, Values], new: tuple[Values, Values]) -> str:
    times = middle(new[0]) / middle(old[0])
    if 1.0 / LIKE <= times <= LIKE:
        return ""
    return f"the control took {times:.3g} times as long: the machine was busy or another one, or all became slower"
