"""The comparisons that recorded samples allow: each of identical work, and of work with 5 % more of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.calibration.rates import Rate
from benchmarks.calibration.rules import Rule, RuleAnswer
from benchmarks.calibration.samples import Recording, TimedProcess
from benchmarks.calibration.two_runs import PairedCost

BETWEEN = ("technique", "slower technique")
"""Sides of a recording of separate processes; one of the others may be the control."""


@dataclass(frozen=True)
class Trial:
    """One side that is old, and two that are new: the same work, and 5 % more of it."""

    old: PairedCost
    same: PairedCost
    slower: PairedCost

    def first(self, pairs: int) -> Trial:
        """This trial with so many samples of each side."""
        return Trial(*(PairedCost(s.samples[:pairs], s.control[:pairs]) for s in (self.old, self.same, self.slower)))


def within(recording: Recording) -> list[Trial]:
    """A trial of each run, whose sides were timed in turn."""
    return [Trial(*(_cost(recording, run, side) for side in ("plain", "twin", "slower"))) for run in recording.runs]


def between(recording: Recording, control: str = "") -> list[Trial]:
    """A trial of every two processes that followed each other, the old side from the first; no process is used twice.

    Args:
        control: the side that the samples are held against, "" for none.
    """
    return [
        Trial(
            _cost(recording, one, BETWEEN[0], control),
            _cost(recording, other, BETWEEN[0], control),
            _cost(recording, other, BETWEEN[1], control),
        )
        for one, other in zip(recording.runs[::2], recording.runs[1::2], strict=False)
    ]


def _cost(recording: Recording, run: TimedProcess, side: str, control: str = "") -> PairedCost:
    held = recording.seconds(run, control).tolist() if control else ()
    return PairedCost(recording.seconds(run, side).tolist(), held)


def false_alarms(rule: Rule, trials: Sequence[Trial], pairs: int) -> Rate:
    """How often a rule calls the same work better or worse."""
    return Rate.of(rule(t.old, t.same) is not RuleAnswer.NOTHING for t in (trial.first(pairs) for trial in trials))


def found(rule: Rule, trials: Sequence[Trial], pairs: int) -> Rate:
    """How often a rule calls 5 % more work worse."""
    return Rate.of(rule(t.old, t.slower) is RuleAnswer.WORSE for t in (trial.first(pairs) for trial in trials))


def slowdown(recording: Recording) -> float:
    """By what factor the slower side was slower, over everything recorded: a trimmed mean of all pairs' log-ratios."""
    fast, slow = BETWEEN if BETWEEN[0] in recording.runs[0].times else ("plain", "slower")
    logs = [np.log(recording.seconds(run, slow) / recording.seconds(run, fast)) for run in recording.runs]
    return float(np.exp(stats.trim_mean(np.concatenate(logs), 0.2)))
