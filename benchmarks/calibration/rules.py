"""What a rule says of two costs, the suite's own rule, and the one that it had for two runs."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from benchmarks.calibration.two_runs import PairedCost, between
from results.compare.ratio import Ratio, ratio


class RuleAnswer(Enum):
    """What a rule says about new times beside old ones."""

    WORSE = "worse"
    BETTER = "better"
    NOTHING = "nothing"


Rule = Callable[[PairedCost, PairedCost], RuleAnswer]
"""Says what the second cost is beside the first; rules but `controlled` look at no control."""


def paired(old: PairedCost, new: PairedCost) -> RuleAnswer:
    """The suite's rule within one process: `results.compare.ratio.ratio` of the samples, however few."""
    return _told(ratio(old.samples, new.samples, fewest=1))


def controlled(old: PairedCost, new: PairedCost) -> RuleAnswer:
    """What was the suite's rule for two runs, `benchmarks.calibration.two_runs.between`, however few samples."""
    return _told(between(old, new, fewest=1))


def _told(found: Ratio) -> RuleAnswer:
    return RuleAnswer.WORSE if found.grew else RuleAnswer.BETTER if found.shrank else RuleAnswer.NOTHING
