"""The comparison of two records of one series, and of two sets of records pair by pair.

Verdicts are compared by what the framework did, expected or not: a failure that an expectation names is a failure, so
an upgrade that turns a pass into a known failure is still shown. Tests that the two suites define differently are not
comparable (`results.compare.changes`). Observations are compared leaf by leaf, so a table of formats shows which
operation changed. Numbers of passing tests are classified by how far they moved (`results.compare.numbers`); of costs,
only exact counts are compared (`results.compare.verdicts`).
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from results.compare import numbers
from results.compare.changes import LEAST, Change, ChangeKind, SuiteChange, Verdicts, incomparable, share, suite_change
from results.compare.environment import Environment, environment
from results.compare.numbers import Courses, MovedNumbers, Movement, as_float
from results.compare.verdicts import demands, find_untimed_tests, kind_of, measurements, measuring, value_text, verdicts
from results.record.files import RecordError
from results.record.folders import heading
from results.record.model import EXPLANATIONS, Json, Outcome, same, walk_values
from results.record.reading import Observation, Record, TestVerdict, load, load_series, pause_collector

Key = tuple[str, str, str]
"""The `key` of a series: framework, kind of device and mode."""

_Source = TypeVar("_Source", Record, Path)

FailOn = Literal["worse", "drift", "never"]
"""Changes on which a comparison fails: regressions, these and drifts, or none. Refused comparisons always fail."""

_FAILING = frozenset({ChangeKind.NEWLY_FAILING, ChangeKind.FAILING_OTHERWISE})
_COMPARED = "composition.calls-agree/calls/"
"""Observations that count what a test compared; more is no loss."""
_EXPLAINED = frozenset({Outcome.UNSUPPORTED, Outcome.KNOWN})
"""Outcomes that the processor may explain."""
_EXCUSED = _FAILING | {ChangeKind.NEWLY_UNJUDGED, ChangeKind.REMOVED, ChangeKind.OBSERVATION_CHANGED}
"""Changes that another processor excuses."""


@dataclass(frozen=True)
class Comparison:
    """Two records of one series and their differences; `refusals` are the reasons why they cannot be compared.

    Attributes:
        compared: number of comparable tests.
        of: number of tests in the old record.
        share: comparable share of the old record's judged tests.
        numbers: how the numbers of each comparable test moved.
    """

    old: Record
    new: Record
    changes: tuple[Change, ...]
    compared: int
    refusals: tuple[str, ...] = ()
    numbers: tuple[MovedNumbers, ...] = ()
    of: int = 0
    share: float = 0.0

    @property
    def judged(self) -> bool:
        """Return whether enough of the old record's tests are comparable."""
        return not self.refusals and self.share >= LEAST

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: regressions; 2: cannot be judged."""
        if not self.judged:
            return 2
        return 1 if any(change.kind.worse for change in self.changes) else 0

    @property
    def drifted(self) -> int:
        """Number of passing tests whose numbers moved by more than rounding explains."""
        return sum(change.kind is ChangeKind.DRIFT for change in self.changes)

    @property
    def identical(self) -> bool:
        """Return whether nothing differs at all, not even the last bit of a number, the environment or the suite."""
        unmoved = all(one.movement is Movement.IDENTICAL for one in self.numbers)
        return self.status == 0 and not self.changes and unmoved and self.environment.same and not self.suite.changed

    @property
    def environment(self) -> Environment:
        """The differences between the environments of the two runs."""
        return environment(self.old, self.new)

    @property
    def suite(self) -> SuiteChange:
        """The differences between the suites that wrote the two records."""
        return suite_change(self.old, self.new)


def compare(old: Record, new: Record) -> Comparison:
    """Return the differences between two records; if one has only some of the tests, the differences in these."""
    refusals = tuple(_refusals(old, new))
    if refusals:
        return Comparison(old, new, (), 0, refusals)
    of = len(old.verdicts)
    if old.selection != new.selection:
        some, other = (new, old) if new.selection else (old, new)
        other = other.only({verdict.test for verdict in some.verdicts})
        old, new = (other, new) if new.selection else (old, other)
    before, after = ({verdict.test: verdict for verdict in record.verdicts} for record in (old, new))
    suite = suite_change(old, new)
    reasons = incomparable(old, new, suite)
    common = before.keys() & after.keys() - reasons.keys()
    sides = [{test: side[test] for test in sorted(common)} for side in (before, after)]
    unjudged = {test for record in (old, new) for test in find_untimed_tests(record)}
    moved = tuple(_numbers(old, new, *sides))
    is_other_processor = environment(old, new).only_the_processor
    if is_other_processor:
        drift, rounding = Movement.DRIFT, Movement.ROUNDING
        moved = tuple(replace(one, movement=rounding) if one.movement is drift else one for one in moved)
    changes = [
        *_locate_failures(verdicts(before, after, reasons, unjudged, new.clauses), moved),
        *_observations(old, new, reasons, _single_bounds(new), suite),
        *measurements(old, new, reasons, unjudged),
        *demands(old, new, *sides),
        *(one.change() for one in moved if one.movement is Movement.DRIFT),
    ]
    changes = [*_excuse_refusals(changes, old, new)]
    common -= {change.subject for change in changes if change.kind is ChangeKind.NOT_COMPARABLE}
    if is_other_processor:
        changes = [_excuse_observation(change) for change in changes if not _is_another_draw(change)]
    order = list(ChangeKind)
    changes.sort(key=lambda change: (order.index(change.kind), change.clause, change.subject))
    return Comparison(old, new, tuple(changes), len(common), (), moved, of, share(before, common))


def _excuse_refusals(changes: Iterable[Change], old: Record, new: Record) -> Iterator[Change]:
    """Yield the changes; a change that the new processor explains becomes not comparable.

    The processor explains a refusal or a known failure whose reason names an instruction set of one processor only.
    """
    sets = set(old.variant.instruction_sets)
    differing = sets ^ set(new.variant.instruction_sets or sets)
    explained = [
        (verdict, f"{'lacks' if named <= sets else 'has'} {', '.join(sorted(named))}")
        for verdict in new.verdicts
        if verdict.outcome in _EXPLAINED and (named := differing & set(re.findall(r"\w+", verdict.reason)))
    ]
    for change in changes:
        excuse = next((pair for pair in explained if change.kind in _EXCUSED and _is_of(change, pair[0])), None)
        if excuse is None:
            yield change
        else:
            detail = f"the new machine {excuse[1]}: {excuse[0].reason}"
            yield replace(change, kind=ChangeKind.NOT_COMPARABLE, detail=detail)


def _is_another_draw(change: Change) -> bool:
    """Return whether another processor's last digits explain a change: of a bound, or of an expected value."""
    numbers_alone = change.detail != "multiplier" and change.new not in ("", "inf", "nan")
    is_bound = change.kind in (ChangeKind.BOUND_WIDER, ChangeKind.BOUND_CHANGED)
    return (is_bound and numbers_alone) or change.detail == numbers.ANOTHER_VALUE


def _excuse_observation(change: Change) -> Change:
    """Return the change; a change of an observation is due to the other processor and becomes not comparable."""
    if change.kind is not ChangeKind.OBSERVATION_CHANGED:
        return change
    return replace(change, kind=ChangeKind.NOT_COMPARABLE, detail="another processor")


def _is_of(change: Change, verdict: TestVerdict) -> bool:
    """Return whether a change is about a test's verdict or one of its observations."""
    observed = f"{change.subject.partition(' › ')[0]}/".endswith(f"/{verdict.case}/")
    return change.clause == verdict.clause and (change.subject == verdict.test or observed)


def _refusals(old: Record, new: Record) -> Iterator[str]:
    for what, a, b in (
        ("frameworks", old.series.framework, new.series.framework),
        ("kinds of device", old.series.device_kind, new.series.device_kind),
        ("modes", old.series.mode, new.series.mode),
    ):
        if a != b:
            yield f"different {what}: {a or 'none'} and {b or 'none'}"
    if old.seed != new.seed:
        yield f"different seeds: {old.seed} and {new.seed}; run one of them again with --seed"
    for name, record in (("old", old), ("new", new)):
        if record.status == "interrupted":
            yield f"the {name} run was interrupted; run it again to its end"
        if record.status == "partial" and not record.selection:
            yield f"the {name} run left out tests ({'; '.join(record.notes) or 'no reason recorded'}); run all of them"
    if old.selection != new.selection and old.selection and new.selection:
        yield f"different selections of tests: {old.selection} and {new.selection}"


def _numbers(old: Record, new: Record, before: Verdicts, after: Verdicts) -> Iterator[MovedNumbers]:
    courses = Courses.of(old), Courses.of(new)
    for test, verdict in after.items():
        if measuring(new, verdict):
            continue
        kind = kind_of(before[test], verdict)
        if kind in (None, ChangeKind.NEWLY_PASSING, *_FAILING):
            one = numbers.compare_numbers(*courses, before[test], verdict, kind in _FAILING)
            if one is not None:
                yield one


def _locate_failures(changes: Iterator[Change], moved: tuple[MovedNumbers, ...]) -> Iterator[Change]:
    """Yield the changes; the detail of a failure gets the first tensor that differs."""
    where = {one.test: one.where for one in moved if one.where}
    for change in changes:
        if change.kind in _FAILING and change.subject in where:
            yield replace(change, detail="; ".join(filter(None, (change.detail, where[change.subject]))))
        else:
            yield change


def _single_bounds(record: Record) -> dict[str, float]:
    """Return the numeric bound of each test that has exactly one, by test."""
    bounds = {
        verdict.test: [bound for check in verdict.checks if (bound := as_float(check.bound)) is not None]
        for verdict in record.verdicts
    }
    return {test: values[0] for test, values in bounds.items() if len(values) == 1}


def _observations(
    old: Record, new: Record, reasons: Mapping[str, str], bounds: Mapping[str, float], suite: SuiteChange
) -> Iterator[Change]:
    before, after = _leaves(old.observations), _leaves(new.observations)
    for leaf in sorted(before.keys() | after.keys()):
        (clause, key, case), way = leaf
        test = f"{clause}/{case}"
        name = " › ".join((f"{clause}/{key}" + (f"/{case}" if case else ""), *way))
        values = before.get(leaf), after.get(leaf)
        sides = value_text(values[0]), value_text(values[1])
        if same(*values):
            continue
        if test in reasons and leaf in before:
            yield Change(ChangeKind.NOT_COMPARABLE, clause, name, *sides, reasons[test])
        elif values[0] is None:
            yield Change(ChangeKind.ADDED, clause, name, *sides)
        elif values[1] is None and suite.unknown:
            detail = "the suite of the new record may not observe it"
            yield Change(ChangeKind.NOT_COMPARABLE, clause, name, *sides, detail)
        elif values[1] is None:
            yield Change(ChangeKind.REMOVED, clause, name, *sides)
        elif not _close(*values, bounds.get(test, 0.0)):
            is_larger = (
                name.startswith(_COMPARED) and type(values[0]) is type(values[1]) is int and values[0] < values[1]
            )
            kind = ChangeKind.ALTERED if is_larger else ChangeKind.OBSERVATION_CHANGED
            yield Change(kind, clause, name, *sides)


def _close(old: Json, new: Json, bound: float) -> bool:
    """Return whether two observed numbers differ only in last digits, or by no more than the test's own bound."""
    if not (isinstance(old, float) and isinstance(new, float)):
        return False
    return math.isclose(new, old, rel_tol=numbers.ORACLE_DIGITS, abs_tol=bound)


_Leaf = tuple[tuple[str, str, str], tuple[str, ...]]
"""Key of an observation, and the path inside its value."""


def _leaves(observations: Iterable[Observation]) -> dict[_Leaf, Json]:
    leaves = ((one.place, way, leaf) for one in observations for way, leaf in walk_values(one.value))
    return {(location, way): leaf for location, way, leaf in leaves if not EXPLANATIONS.intersection(way[-1:])}


@dataclass(frozen=True)
class Comparisons:
    """Every pair of records of one series, and the series on only one side."""

    pairs: tuple[Comparison, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: regressions; 2: a pair cannot be compared, or a record has no partner."""
        if any(pair.status == 1 for pair in self.pairs):
            return 1
        return 2 if self._unreliable else 0

    def exit_status(self, fail_on: FailOn) -> int:
        """Return 2 if the comparison is incomplete, 1 if a change is of a kind on which the command fails, else 0."""
        if fail_on == "never":
            return 2 if self._unreliable else 0
        if fail_on == "drift" and any(pair.drifted for pair in self.pairs):
            return 1
        return self.status

    @property
    def _unreliable(self) -> bool:
        return any(pair.status == 2 for pair in self.pairs) or bool(self.unmatched) or not self.pairs


NONE = Comparisons(())
"""The comparison without any records."""


def compare_sets(old: Sequence[Record], new: Sequence[Record]) -> Comparisons:
    """Compare a single record with a single record of any series, or the records of larger sets series by series.

    Raises:
        RecordError: a set holds two records of a series.
    """
    before, after = ([(record.series.key, record) for record in side] for side in (old, new))
    return _compare_series(before, after, lambda record: record)


def compare_files(old: Sequence[Path], new: Sequence[Path], partial: bool = False) -> Comparisons:
    """Compare the records in files as `compare_sets` does, with only two of them in memory at a time.

    Args:
        partial: whether `new` is incomplete; then series that only `old` has are left out.

    Raises:
        RecordError: a file cannot be read, or a set has two records of a series.
    """
    with pause_collector():
        before, after = ([(load_series(path).key, path) for path in side] for side in (old, new))
        if partial:
            wanted = {key for key, _ in after}
            before = [(key, path) for key, path in before if key in wanted]
        return _compare_series(before, after, load)


def _compare_series(
    before: Sequence[tuple[Key, _Source]], after: Sequence[tuple[Key, _Source]], read: Callable[[_Source], Record]
) -> Comparisons:
    """Compare records by series; in the result, headings replace the records."""
    if len(before) == len(after) == 1:
        return Comparisons((_pair(read(before[0][1]), read(after[0][1])),))
    old, new = _index_sources(before, "old", read), _index_sources(after, "new", read)
    pairs = tuple(_pair(read(old[key]), read(new[key])) for key in sorted(old.keys() & new.keys()))
    unmatched = []
    for key in sorted(old.keys() ^ new.keys()):
        side, sources = ("old", old) if key in old else ("new", new)
        read(sources[key])  # a record that cannot be read is an error without a partner too
        unmatched.append(f"{series_name(key)}: only among the {side} records")
    return Comparisons(pairs, tuple(unmatched))


def _pair(old: Record, new: Record) -> Comparison:
    pair = compare(old, new)
    return replace(pair, old=heading(pair.old), new=heading(pair.new))


def _index_sources(
    keyed: Sequence[tuple[Key, _Source]], side: str, read: Callable[[_Source], Record]
) -> dict[Key, _Source]:
    placed: dict[Key, _Source] = {}
    for key, source in keyed:
        if key in placed:
            versions = " and ".join(read(entry).variant.framework_version for entry in (placed[key], source))
            problem = f"include two records of {series_name(key)} ({versions})"
            raise RecordError(f"the {side} records", problem, "name only one of them")
        placed[key] = source
    return placed


def series_name(key: Key) -> str:
    """Return a series in words."""
    framework, device, mode = key
    return " ".join(filter(None, (framework, mode, device)))
