"""What changed between two records of one series, and what it is called.

Two verdicts are compared by what the framework did, not by whether somebody foresaw it: a failure that an expectation
names is a failure, so an upgrade that turns a pass into a known failure is still shown. A test whose code changed is
not comparable; observations are compared leaf by leaf, so that a table of formats tells which operation moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from results.outcomes import Outcome
from results.paired import Cost, between, ratio
from results.records import Check, Measurement, Record, Verdict
from results.values import Json


class Kind(StrEnum):
    """The ways in which two records can differ, the gravest first."""

    NEWLY_FAILING = "newly failing"
    FAILING_OTHERWISE = "failing otherwise"
    NEWLY_UNSUPPORTED = "newly unsupported"
    REMOVED = "removed"
    OBSERVATION_CHANGED = "observation changed"
    MEASURE_WORSE = "measure worse"
    NOT_COMPARABLE = "not comparable"
    BOUND_CHANGED = "bound changed"
    ADDED = "added"
    MEASURE_BETTER = "measure better"
    NEWLY_PASSING = "newly passing"

    @property
    def worse(self) -> bool:
        """Whether somebody should look at it before upgrading; a changed observation counts."""
        return self in _WORSE


_WORSE = frozenset(
    {
        Kind.NEWLY_FAILING,
        Kind.FAILING_OTHERWISE,
        Kind.NEWLY_UNSUPPORTED,
        Kind.REMOVED,
        Kind.OBSERVATION_CHANGED,
        Kind.MEASURE_WORSE,
    }
)
_HELD = frozenset({Outcome.PASS, Outcome.FIXED})
_UNJUDGED = frozenset({Outcome.UNSUPPORTED, Outcome.ABSTAIN})


BOUND_ROUNDING = 1e-6
"""Relative difference up to which two derived bounds are one: the linear algebra library moves their last digits."""

ENSEMBLE_SPREAD = 0.5
"""The same for bounds of one origin: a last digit turns a random rounding, which makes it another draw of eight. If
another parameter or update is furthest out as well, its bound is no other bound of the same thing."""


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        clause: id of the clause that it is about.
        subject: test, observation or measurement that it is about.
        old, new: what stood there; "" where nothing did.
        detail: reason, link or statistic in one sentence, or "".
        repro: command that repeats the new test, or "".
    """

    kind: Kind
    clause: str
    subject: str
    old: str = ""
    new: str = ""
    detail: str = ""
    repro: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two records of one series, and everything that differs; `refusals` say why they cannot be compared, if so."""

    old: Record
    new: Record
    changes: tuple[Change, ...]
    compared: int
    refusals: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """0: nothing is worse; 1: something is; 2: no reliable comparison could be made."""
        if self.refusals or not self.compared:
            return 2
        return 1 if any(change.kind.worse for change in self.changes) else 0


def compare(old: Record, new: Record) -> Comparison:
    """Everything that differs between two records."""
    refusals = tuple(_refusals(old, new))
    if refusals:
        return Comparison(old, new, (), 0, refusals)
    before, after = ({verdict.test: verdict for verdict in record.verdicts} for record in (old, new))
    recoded = {t for t in before.keys() & after.keys() if before[t].code_hash != after[t].code_hash}
    untimed = {test for record in (old, new) for test in _untimed(record)}
    changes = [
        *_verdicts(before, after, recoded, untimed),
        *_observations(old, new, recoded),
        *_measurements(old, new, recoded, untimed),
    ]
    order = list(Kind)
    changes.sort(key=lambda change: (order.index(change.kind), change.clause, change.subject))
    return Comparison(old, new, tuple(changes), len(before.keys() & after.keys() - recoded))


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
    if old.selection != new.selection:
        yield f"another selection of tests: {old.selection or 'all'} and {new.selection or 'all'}"


def _untimed(record: Record) -> Iterator[str]:
    """Tests of measurements whose control failed: the machine was busy, and nothing follows for the framework."""
    for verdict in record.verdicts:
        clause = record.clauses.get(verdict.clause)
        if verdict.outcome is Outcome.ABSTAIN and clause is not None and clause.level == "MEASUREMENT":
            yield verdict.test


def _verdicts(
    before: Mapping[str, Verdict], after: Mapping[str, Verdict], recoded: set[str], untimed: set[str]
) -> Iterator[Change]:
    for test in sorted(before.keys() | after.keys()):
        old, new = before.get(test), after.get(test)
        if old is None and new is not None:
            yield Change(Kind.ADDED, new.clause, test, "", _said(new), new.reason, new.repro)
        elif new is None and old is not None:
            yield Change(Kind.REMOVED, old.clause, test, _said(old))
        elif old is not None and new is not None:
            if test in recoded:
                detail = "the test's code is another one"
                yield Change(Kind.NOT_COMPARABLE, new.clause, test, _said(old), _said(new), detail, new.repro)
                continue
            kind = _kind(old, new)
            if test in untimed and kind in (Kind.NEWLY_UNSUPPORTED, Kind.NEWLY_PASSING):
                kind = Kind.NOT_COMPARABLE
            if kind is not None:
                yield Change(kind, new.clause, test, _said(old), _said(new), _why(new), new.repro)
            yield from _bounds(old, new)


def _kind(old: Verdict, new: Verdict) -> Kind | None:
    if new.outcome in _UNJUDGED:
        return None if old.outcome in _UNJUDGED else Kind.NEWLY_UNSUPPORTED
    if new.outcome in _HELD:
        return None if old.outcome in _HELD else Kind.NEWLY_PASSING
    if old.outcome in _HELD or old.outcome in _UNJUDGED:
        return Kind.NEWLY_FAILING
    return None if old.signature == new.signature else Kind.FAILING_OTHERWISE


def _said(verdict: Verdict) -> str:
    return f"{verdict.outcome.value} ({verdict.signature})" if verdict.signature else verdict.outcome.value


def _why(verdict: Verdict) -> str:
    return " ".join(filter(None, (verdict.reason or verdict.message, verdict.link)))


def _bounds(old: Verdict, new: Verdict) -> Iterator[Change]:
    former = _by_what(old.checks)
    for (what, place), check in _by_what(new.checks).items():
        previous = former.get((what, place))
        if previous is not None and not _same_bound(previous, check):
            yield Change(
                Kind.BOUND_CHANGED, new.clause, f"{new.test}: {what}", shown(previous.bound), shown(check.bound)
            )


def _same_bound(old: Check, new: Check) -> bool:
    a, b = old.bound, new.bound
    if not (isinstance(a, float) and isinstance(b, float)):
        return same(a, b)
    if "origin" not in new.derivation or not same(old.derivation.get("origin"), new.derivation["origin"]):
        return same(a, b) or math.isclose(a, b, rel_tol=BOUND_ROUNDING)
    elsewhere = not same(old.derivation, new.derivation)
    return elsewhere or math.isclose(a, b, rel_tol=ENSEMBLE_SPREAD)


def _by_what(checks: Sequence[Check]) -> dict[tuple[str, int], Check]:
    found: dict[tuple[str, int], Check] = {}
    places: Counter[str] = Counter()
    for check in checks:
        found[check.what, places[check.what]] = check
        places[check.what] += 1
    return found


def _observations(old: Record, new: Record, recoded: set[str]) -> Iterator[Change]:
    tests = {test.rpartition("::")[2] for test in recoded}
    before, after = _leaves(old.observations), _leaves(new.observations)
    for key in sorted(before.keys() | after.keys()):
        name = " › ".join(key)
        clause, _, rest = key[0].partition("/")
        if rest.rpartition("/")[2] in tests:
            if not same(before.get(key), after.get(key)):
                detail = "the test's code is another one"
                yield Change(Kind.NOT_COMPARABLE, clause, name, shown(before.get(key)), shown(after.get(key)), detail)
        elif key not in before:
            yield Change(Kind.ADDED, clause, name, "", shown(after[key]))
        elif key not in after:
            yield Change(Kind.REMOVED, clause, name, shown(before[key]))
        elif not same(before[key], after[key]):
            yield Change(Kind.OBSERVATION_CHANGED, clause, name, shown(before[key]), shown(after[key]))


def _leaves(values: Mapping[str, Json], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Json]:
    found: dict[tuple[str, ...], Json] = {}
    for key, value in values.items():
        path = (*above, str(key))
        found.update(_leaves(value, path) if isinstance(value, Mapping) and value else {path: value})
    return found


def _measurements(old: Record, new: Record, recoded: set[str], untimed: set[str]) -> Iterator[Change]:
    tests, left_out = ({test.rpartition("::")[2] for test in chosen} for chosen in (recoded, untimed))
    for name in sorted(old.measurements.keys() | new.measurements.keys()):
        if name.rpartition("/")[2] in left_out:
            continue
        before, after = old.measurements.get(name), new.measurements.get(name)
        if before is None and after is not None:
            yield Change(Kind.ADDED, after.clause, name, "", f"{len(after.samples)} samples in {after.unit}")
        elif after is None and before is not None:
            yield Change(Kind.REMOVED, before.clause, name, f"{len(before.samples)} samples in {before.unit}")
        elif before is not None and after is not None:
            change = _cost(name, before, after, name.rpartition("/")[2] in tests)
            if change is not None:
                yield change


def _cost(name: str, before: Measurement, after: Measurement, recoded: bool) -> Change | None:
    found = between(Cost(before.samples, before.control), Cost(after.samples, after.control))
    sides = _amount(before), _amount(after)
    if recoded:
        return Change(Kind.NOT_COMPARABLE, after.clause, name, *sides, "the test's code is another one")
    if before.unit != after.unit:
        return Change(Kind.NOT_COMPARABLE, after.clause, name, *sides, "the units are not the same")
    if not found.judged:
        return Change(Kind.NOT_COMPARABLE, after.clause, name, *sides, found.told)
    if found.grew or found.shrank:
        kind = Kind.MEASURE_WORSE if found.grew else Kind.MEASURE_BETTER
        return Change(kind, after.clause, name, *sides, found.told)
    return None


def _amount(measurement: Measurement) -> str:
    """The median sample and, if there is a control, how many times the control's the samples are."""
    held = ratio(measurement.control, measurement.samples)
    times = f", {held.low:.4g} to {held.high:.4g} × its control" if measurement.control and held.judged else ""
    return f"{median(measurement.samples):.4g} {measurement.unit}{times}" if measurement.samples else ""


def same(a: Json, b: Json) -> bool:
    """Equal, NaN to NaN; an int equals the float of the same value, and neither equals a bool."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or (a != a and b != b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return a == b
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return False


def shown(value: Json) -> str:
    """A value on one line; "" for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.6g}"
