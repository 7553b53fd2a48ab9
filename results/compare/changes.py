"""The ways in which two records can differ, and one such difference."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from results.record.model import RunSetup


class ChangeKind(StrEnum):
    """The ways in which two records can differ, the gravest first.

    CONTRADICTED: a test passes although a check of its own did not. LEVEL_LOWERED, FEWER_CHECKS, TRACE_MISSING,
    BOUND_WIDER: the newer record demands less of the same test (see `results.compare.strictness`). ORACLE_CHANGED: the
    reference itself computes something else. DRIFT: a number of a test that holds moved by more than rounding explains
    (see `results.compare.numbers`). UNSTABLE: a verdict did not come out the same when it was repeated in a new
    process, in one of the runs. NOT_COMPARABLE: the two records did not ask the same (see
    `results.compare.comparability`). NOT_JUDGED: a cost that varies, such as a time, which two records of two moments
    cannot judge.
    """

    NEWLY_FAILING = "newly failing"
    FAILING_OTHERWISE = "failing otherwise"
    NEWLY_UNJUDGED = "newly not judged"
    REMOVED = "removed"
    OBSERVATION_CHANGED = "observation changed"
    MEASURE_WORSE = "measure worse"
    CONTRADICTED = "passes against its own checks"
    LEVEL_LOWERED = "level lowered"
    FEWER_CHECKS = "fewer checks"
    TRACE_MISSING = "trace missing"
    BOUND_WIDER = "bound wider"
    ORACLE_CHANGED = "oracle changed"
    DRIFT = "drift"
    UNSTABLE = "unstable"
    NOT_COMPARABLE = "not comparable"
    BOUND_CHANGED = "bound changed"
    LEVEL_RAISED = "level raised"
    ADDED = "added"
    MEASURE_BETTER = "measure better"
    NEWLY_PASSING = "newly passing"
    NOT_JUDGED = "not judged here"

    @property
    def worse(self) -> bool:
        """Whether somebody should look at it before upgrading; a changed observation counts."""
        return self in _WORSE

    @property
    def listed(self) -> bool:
        """Whether each change is worth a row of its own; of the others a count and a list are enough."""
        return self not in _COUNTED


_WORSE = frozenset(
    {
        ChangeKind.NEWLY_FAILING,
        ChangeKind.FAILING_OTHERWISE,
        ChangeKind.NEWLY_UNJUDGED,
        ChangeKind.REMOVED,
        ChangeKind.OBSERVATION_CHANGED,
        ChangeKind.MEASURE_WORSE,
        ChangeKind.CONTRADICTED,
        ChangeKind.LEVEL_LOWERED,
        ChangeKind.FEWER_CHECKS,
        ChangeKind.TRACE_MISSING,
        ChangeKind.BOUND_WIDER,
        ChangeKind.ORACLE_CHANGED,
    }
)
_COUNTED = frozenset(
    {
        ChangeKind.REMOVED,
        ChangeKind.NOT_COMPARABLE,
        ChangeKind.BOUND_CHANGED,
        ChangeKind.ADDED,
        ChangeKind.NOT_JUDGED,
    }
)


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        clause: id of the clause that it is about.
        subject: test, observation or measurement that it is about.
        old, new: what stood there; "" where nothing did.
        detail: reason, link or statistic in one sentence, or "".
        repro: command that repeats the new test, or "".
        runs: the training runs that the new verdict rests on.
    """

    kind: ChangeKind
    clause: str
    subject: str
    old: str = ""
    new: str = ""
    detail: str = ""
    repro: str = ""
    runs: tuple[RunSetup, ...] = ()
