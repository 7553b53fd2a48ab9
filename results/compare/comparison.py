"""What changed between two records of one series, and what it is called.

Two verdicts are compared by what the framework did, not by whether somebody foresaw it: a failure that an expectation
names is a failure, so an upgrade that turns a pass into a known failure is still shown. A test whose code changed is
not comparable; observations are compared leaf by leaf, so that a table of formats tells which operation moved. What the
numbers of tests that hold did is classed (`results.compare.numbers`), and costs are compared as counted
(`results.compare.measurements`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from results.compare import numbers
from results.compare.changes import OTHER_CODE, Change, ChangeKind
from results.compare.environment import Environment, environment
from results.compare.measurements import measurements
from results.compare.numbers import Courses, Moved, Movement
from results.compare.verdicts import kind_of, measuring, shown, untimed, verdicts
from results.record.outcomes import Outcome
from results.record.reading import Observation, Record, TestVerdict
from results.record.values import Json, same

__all__ = ["Change", "ChangeKind", "Comparison", "Moved", "Movement", "compare", "same"]

_FAILING = frozenset({ChangeKind.NEWLY_FAILING, ChangeKind.FAILING_OTHERWISE})
_EXPLAINED = frozenset({Outcome.UNSUPPORTED, Outcome.KNOWN})
_LEFT_OUT = frozenset({ChangeKind.NEWLY_UNJUDGED, ChangeKind.REMOVED, ChangeKind.OBSERVATION_CHANGED})


@dataclass(frozen=True)
class Comparison:
    """Two records of one series, and everything that differs; `refusals` say why they cannot be compared, if so.

    Attributes:
        compared: how many tests both records hold with the same code.
        numbers: what became of the numbers of each of these that has any.
    """

    old: Record
    new: Record
    changes: tuple[Change, ...]
    compared: int
    refusals: tuple[str, ...] = ()
    numbers: tuple[Moved, ...] = ()

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: something is; 2: no reliable comparison could be made."""
        if self.refusals or not self.compared:
            return 2
        return 1 if any(change.kind.worse for change in self.changes) else 0

    @property
    def drifted(self) -> int:
        """How many tests hold whose numbers moved by more than rounding explains."""
        return sum(change.kind is ChangeKind.DRIFT for change in self.changes)

    @property
    def identical(self) -> bool:
        """Whether nothing differs at all, not even the last bit of a number or the environment."""
        unmoved = all(one.movement is Movement.IDENTICAL for one in self.numbers)
        return self.status == 0 and not self.changes and unmoved and self.environment.same

    @property
    def environment(self) -> Environment:
        """What differs between the environments of the two runs."""
        return environment(self.old, self.new)


def compare(old: Record, new: Record) -> Comparison:
    """Everything that differs between two records."""
    refusals = tuple(_refusals(old, new))
    if refusals:
        return Comparison(old, new, (), 0, refusals)
    before, after = ({verdict.test: verdict for verdict in record.verdicts} for record in (old, new))
    recoded = {t for t in before.keys() & after.keys() if before[t].code_hash != after[t].code_hash}
    unjudged = {test for record in (old, new) for test in untimed(record)}
    moved = tuple(_numbers(old, new, before, after, recoded))
    changes = [
        *_located(verdicts(before, after, recoded, unjudged), moved),
        *_observations(old, new, recoded, _reaches(new)),
        *measurements(old, new, recoded, unjudged),
        *(one.change() for one in moved if one.movement is Movement.DRIFT),
    ]
    changes = list(_of_the_processor(changes, old, new))
    order = list(ChangeKind)
    changes.sort(key=lambda change: (order.index(change.kind), change.clause, change.subject))
    compared = len(before.keys() & after.keys() - recoded)
    return Comparison(old, new, tuple(changes), compared, numbers=moved)


def _wanting(old: Record, new: Record) -> dict[str, str]:
    """Instruction sets that only the old processor offers, by each reason of the new record that names some.

    Reasons are those of refusals and of known failures: either is said of the processor, and of no version.
    """
    lacking = set(old.variant.instruction_sets) - set(new.variant.instruction_sets)
    if not new.variant.instruction_sets:
        return {}
    reasons = {verdict.reason for verdict in new.verdicts if verdict.outcome in _EXPLAINED}
    named = {reason: lacking & set(re.findall(r"\w+", reason)) for reason in reasons}
    return {reason: ", ".join(sorted(sets)) for reason, sets in named.items() if sets}


def _of_the_processor(changes: Iterable[Change], old: Record, new: Record) -> Iterator[Change]:
    """The same changes; what the new processor explains is no change for the worse.

    A known failure is explained by its own reason. One refusal explains whatever is refused, left out or observed
    otherwise, since what is drawn and tried follows from what is declared.
    """
    wanting = _wanting(old, new)
    verdicts = {verdict.test: verdict for verdict in new.verdicts}
    refused = {verdict.reason for verdict in new.verdicts if verdict.outcome is Outcome.UNSUPPORTED}
    sets = ", ".join(sorted({wanting[reason] for reason in refused & wanting.keys()}))
    for change in changes:
        verdict = verdicts.get(change.subject)
        if change.kind in _LEFT_OUT and sets:
            detail = f"the new machine refuses something for want of {sets}"
        elif change.kind in _FAILING and verdict and verdict.outcome is Outcome.KNOWN and verdict.reason in wanting:
            detail = f"known to fail for want of {wanting[verdict.reason]}"
        else:
            yield change
            continue
        yield replace(change, kind=ChangeKind.NOT_COMPARABLE, detail=detail)


def _refusals(old: Record, new: Record) -> Iterator[str]:
    for what, a, b in (
        ("framework", old.series.framework, new.series.framework),
        ("kind of device", old.series.device_kind, new.series.device_kind),
        ("mode", old.series.mode, new.series.mode),
    ):
        if a != b:
            yield f"another {what}: {a or 'none'} and {b or 'none'}"
    if old.seed != new.seed:
        yield f"another seed: {old.seed} and {new.seed}; run one of them again with --seed"
    for name, record in (("old", old), ("new", new)):
        if record.status == "interrupted":
            yield f"the {name} run was interrupted; run it again to its end"
        if record.status == "partial" and not record.selection:
            yield f"the {name} run left out tests ({'; '.join(record.notes) or 'unasked'}); run all of them"
    if old.selection != new.selection:
        yield f"another selection of tests: {old.selection or 'all'} and {new.selection or 'all'}"


def _numbers(
    old: Record, new: Record, before: Mapping[str, TestVerdict], after: Mapping[str, TestVerdict], recoded: set[str]
) -> Iterator[Moved]:
    courses = Courses.of(old), Courses.of(new)
    for test in sorted((before.keys() & after.keys()) - recoded):
        if measuring(new, after[test]):
            continue
        kind = kind_of(before[test], after[test])
        if kind in (None, ChangeKind.NEWLY_PASSING, *_FAILING):
            one = numbers.moved(*courses, before[test], after[test], kind in _FAILING)
            if one is not None:
                yield one


def _located(changes: Iterator[Change], moved: tuple[Moved, ...]) -> Iterator[Change]:
    """The same changes, a failure with the first tensor that differs."""
    where = {one.test: one.where for one in moved if one.where}
    for change in changes:
        if change.kind in _FAILING and change.subject in where:
            yield replace(change, detail="; ".join(filter(None, (change.detail, where[change.subject]))))
        else:
            yield change


def _reaches(record: Record) -> dict[str, float]:
    """How far a number of each test may be from what is expected, by case; tests with one such bound only."""
    held = {
        verdict.test.rpartition("::")[2]: [
            bound for check in verdict.checks if (bound := numbers.number(check.bound)) is not None
        ]
        for verdict in record.verdicts
    }
    return {case: bounds[0] for case, bounds in held.items() if len(bounds) == 1}


def _observations(old: Record, new: Record, recoded: set[str], reaches: Mapping[str, float]) -> Iterator[Change]:
    tests = {test.rpartition("::")[2] for test in recoded}
    before, after = _leaves(old.observations), _leaves(new.observations)
    for place in sorted(before.keys() | after.keys()):
        (clause, key, case), way = place
        name = " › ".join((f"{clause}/{key}" + (f"/{case}" if case else ""), *way))
        sides = shown(before.get(place)), shown(after.get(place))
        if case in tests:
            if not same(before.get(place), after.get(place)):
                yield Change(ChangeKind.NOT_COMPARABLE, clause, name, *sides, OTHER_CODE)
        elif place not in before:
            yield Change(ChangeKind.ADDED, clause, name, "", sides[1])
        elif place not in after:
            yield Change(ChangeKind.REMOVED, clause, name, sides[0])
        elif not same(before[place], after[place]) and not _close(before[place], after[place], reaches.get(case, 0.0)):
            yield Change(ChangeKind.OBSERVATION_CHANGED, clause, name, *sides)


def _close(old: Json, new: Json, reach: float) -> bool:
    """Whether two observed numbers differ in last digits alone, or by no more than the test's own bound for them."""
    if not (isinstance(old, float) and isinstance(new, float)):
        return False
    return math.isclose(new, old, rel_tol=numbers.ORACLE_DIGITS, abs_tol=reach)


_Leaf = tuple[tuple[str, str, str], tuple[str, ...]]
"""An observation's place, and the way down into its value."""


def _leaves(observations: Iterable[Observation]) -> dict[_Leaf, Json]:
    return {(one.place, way): leaf for one in observations for way, leaf in _down(one.value, ())}


def _down(value: Json, way: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _down(item, (*way, str(key)))
    else:
        yield way, value
