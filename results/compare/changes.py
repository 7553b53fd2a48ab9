"""Kinds of differences between two records, and tests that cannot be compared, with the reason.

Two verdicts are of the same test if its clause has one revision in both records and the test trained the same recipes;
its code may differ. A test in only one record is a change of the framework, with two exceptions: the suite of the other
record may not have had the test, or its function has other cases there, as rows of a covering array depend on the
declared capabilities.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from results.record.model import UNJUDGED, Outcome, RunSetup, same
from results.record.reading import Record, TestVerdict


class ChangeKind(StrEnum):
    """Kinds of differences between two records, the gravest first; all before DRIFT are worse.

    CONTRADICTED: a test passes although one of its checks failed, or has an error that its bound does not allow.
    UNCHECKED: a test newly passes, and checked nothing. INCONSISTENT: verdicts contradict their own record.
    LEVEL_LOWERED, FEWER_CHECKS, TRACE_MISSING, BOUND_WIDER: the newer record demands less of the same test (see
    `results.compare.verdicts`). ORACLE_CHANGED: the reference itself has changed. DRIFT: a number of a passing test
    moved by more than rounding explains (see `results.compare.numbers`). UNSTABLE: in one of the runs, a verdict
    changed when it was repeated in a new process. NOT_COMPARABLE: the suites define the test differently (see
    `results.compare.changes`). ALTERED: something differs that judges nothing. NOT_JUDGED: a timing, which separate
    runs cannot judge.
    """

    NEWLY_FAILING = "newly failing"
    FAILING_OTHERWISE = "failing otherwise"
    NEWLY_UNJUDGED = "newly not judged"
    REMOVED = "removed"
    OBSERVATION_CHANGED = "observation changed"
    MEASURE_WORSE = "measure worse"
    CONTRADICTED = "passes against its own checks"
    UNCHECKED = "passes without a check"
    INCONSISTENT = "contradicts its own record"
    LEVEL_LOWERED = "level lowered"
    FEWER_CHECKS = "fewer checks"
    TRACE_MISSING = "trace missing"
    BOUND_WIDER = "bound wider"
    ORACLE_CHANGED = "oracle changed"
    DRIFT = "drift"
    UNSTABLE = "unstable"
    NOT_COMPARABLE = "not comparable"
    BOUND_CHANGED = "bound changed"
    ALTERED = "altered"
    LEVEL_RAISED = "level raised"
    ADDED = "added"
    MEASURE_BETTER = "measure better"
    NEWLY_PASSING = "newly passing"
    NOT_JUDGED = "not judged here"

    @property
    def worse(self) -> bool:
        """Return whether somebody should look at it before upgrading; a changed observation counts."""
        return _ORDER.index(self) < _ORDER.index(ChangeKind.DRIFT)

    @property
    def listed(self) -> bool:
        """Return whether each change gets a row of its own; the others are counted and listed."""
        return self not in _COUNTED


_ORDER = list(ChangeKind)
_NAMES_OF_COUNTED = "removed", "not comparable", "bound changed", "altered", "added", "not judged here"
_COUNTED = frozenset(map(ChangeKind, _NAMES_OF_COUNTED))


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        clause: id of the clause.
        subject: name of the test, observation or measurement.
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


LEAST = 0.5
"""Smallest comparable share of the old record's judged tests; below it, a comparison has no result."""

PASS_OUTCOMES = frozenset({Outcome.PASS, Outcome.FIXED})

Verdicts = Mapping[str, TestVerdict]
"""Verdicts by test."""

_DIGITS = 12


@dataclass(frozen=True)
class SuiteChange:
    """Differences between the suites that wrote two records.

    Attributes:
        areas: areas whose files differ, such as "judging", in alphabetical order.
        unknown: whether one of the records does not name the areas of its suite.
        version, commit: both values if they differ, else "".
        untested: clauses that had tests before and have none now.
    """

    areas: tuple[str, ...] = ()
    unknown: bool = False
    version: str = ""
    commit: str = ""
    untested: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Return whether the suites are known to differ in more than their commit."""
        return bool(self.areas or self.version or self.untested)

    @property
    def asks_the_same(self) -> bool:
        """Return whether the two suites are known to have the same clauses and tests."""
        return not (self.unknown or {"specification", "judging", "tests"} & {*self.areas})

    def lines(self) -> Iterator[str]:
        """One line for each difference, the areas first."""
        if self.areas:
            yield f"the suite differs: {', '.join(self.areas)}"
        if self.unknown:
            yield "the suite may differ: an older record does not name the areas of its suite"
        if self.version:
            yield f"suite version: {self.version}"
        if self.commit and (self.changed or self.unknown or self.commit.endswith("+")):
            yield f"suite commit: {self.commit}"
        if self.untested:
            yield f"clauses without tests now: {len(self.untested)}: {', '.join(self.untested)}"


def suite_change(old: Record, new: Record) -> SuiteChange:
    """Return the differences between the suites of two records."""
    before, after = old.suite, new.suite
    known = bool(before.areas and after.areas)
    names = sorted(before.areas.keys() | after.areas.keys()) if known else []
    return SuiteChange(
        tuple(name for name in names if before.areas.get(name) != after.areas.get(name)),
        not known,
        _step(before.version, after.version),
        _step(_short(before.commit), _short(after.commit)),
        tuple(name for name in after.clauses_without_tests if name in before.clauses_with_tests),
    )


def _short(commit: str) -> str:
    return f"{commit[:_DIGITS]}{'+' if commit.endswith('+') else ''}"


def _step(old: str, new: str) -> str:
    return f"{old or 'unknown'} → {new or 'unknown'}" if old != new else ""


def incomparable(old: Record, new: Record, suite: SuiteChange) -> dict[str, str]:
    """Return why tests of either record cannot be compared, by test."""
    before, after = ({verdict.test: verdict for verdict in record.verdicts} for record in (old, new))
    return {**dict(_changed_tests(old, new, before, after)), **dict(_unmatched_tests(old, new, suite))}


def share(before: Verdicts, comparable: Collection[str]) -> float:
    """Return the comparable share of the tests whose verdict is neither a refusal nor an abstention."""
    judged = [test for test, verdict in before.items() if verdict.outcome not in UNJUDGED] or [*before]
    return sum(test in comparable for test in judged) / len(judged) if judged else 0.0


def _changed_tests(old: Record, new: Record, before: Verdicts, after: Verdicts) -> Iterator[tuple[str, str]]:
    for test in before.keys() & after.keys():
        sides = before[test], after[test]
        clause = sides[1].clause
        revisions = [record.clauses[clause].revision for record in (old, new)]
        if revisions[0] != revisions[1]:
            yield test, f"different revisions of the clause: {revisions[0]} and {revisions[1]}"
        elif sides[0].setup_hash != sides[1].setup_hash:
            yield test, "different training setups"
        elif not _same_runs(*sides):
            yield test, "different training recipes"


def _same_runs(old: TestVerdict, new: TestVerdict) -> bool:
    """Return whether two verdicts have the same runs; of a failed test, which ends early, only the first run counts."""
    if {old.outcome, new.outcome} & UNJUDGED:
        return True
    if old.outcome in PASS_OUTCOMES and new.outcome in PASS_OUTCOMES:
        return _same_setups(old.runs, new.runs)
    return not (old.runs and new.runs) or _same_setups(old.runs[:1], new.runs[:1])


def _same_setups(old: Sequence[RunSetup], new: Sequence[RunSetup]) -> bool:
    return len(old) == len(new) and all(
        a == b or (a.fixture == b.fixture and same(a.recipe, b.recipe)) for a, b in zip(old, new, strict=True)
    )


def _unmatched_tests(old: Record, new: Record, suite: SuiteChange) -> Iterator[tuple[str, str]]:
    """Yield the tests that are in only one record for a reason other than the framework, with the reason."""
    tests = [{verdict.test for verdict in record.verdicts} for record in (old, new)]
    only = tests[0] - tests[1], tests[1] - tests[0]
    functions = [{_function(test) for test in side} for side in tests]
    with_other_cases = {_function(test) for test in only[0]} & {_function(test) for test in only[1]}
    for side, other, name in ((0, 1, "new"), (1, 0, "old")):
        for test in only[side]:
            function = _function(test)
            if function in with_other_cases:
                yield test, "the test function has different cases in the two records"
            elif function not in functions[other] and not suite.asks_the_same:
                yield test, f"the suite of the {name} record has no such test"
            elif suite.unknown:
                yield test, f"the suite of the {name} record may have no such case"


def _function(test: str) -> str:
    return test.partition("[")[0]
