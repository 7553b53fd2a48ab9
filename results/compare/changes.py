"""Kinds of differences between two records, and one difference."""

from dataclasses import dataclass
from enum import StrEnum

from results.record.model import RunSetup


class ChangeKind(StrEnum):
    """Kinds of differences between two records, the gravest first; all before DRIFT are worse.

    CONTRADICTED: a test passes although one of its checks failed. LEVEL_LOWERED, FEWER_CHECKS, TRACE_MISSING,
    BOUND_WIDER: the newer record demands less of the same test (see `results.compare.comparison`). ORACLE_CHANGED: the
    reference itself has changed. DRIFT: a number of a passing test moved by more than rounding explains
    (see `results.compare.numbers`). UNSTABLE: in one of the runs, a verdict changed when it was repeated in a
    new process. NOT_COMPARABLE: the suites define the test differently (see
    `results.compare.comparability`). NOT_JUDGED: a timing, which separate runs cannot judge.
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
        return _ORDER.index(self) < _ORDER.index(ChangeKind.DRIFT)

    @property
    def listed(self) -> bool:
        """Whether each change gets a row of its own; the others are counted and listed."""
        return self not in _COUNTED


_ORDER = list(ChangeKind)
_COUNTED = frozenset(
    {ChangeKind.REMOVED, ChangeKind.NOT_COMPARABLE, ChangeKind.BOUND_CHANGED, ChangeKind.ADDED, ChangeKind.NOT_JUDGED}
)


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        clause: its id.
        subject: test, observation or measurement.
        old, new: the values; "" if unset.
        detail: reason, link or statistic in one sentence, or "".
        repro: command that repeats the new test, or "".
        runs: the training runs behind the new verdict.
    """

    kind: ChangeKind
    clause: str
    subject: str
    old: str = ""
    new: str = ""
    detail: str = ""
    repro: str = ""
    runs: tuple[RunSetup, ...] = ()
