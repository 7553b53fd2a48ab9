"""What became of verdicts between two records: by what the framework did, not by whether somebody foresaw it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from results.compare.changes import OTHER_CODE, Change, ChangeKind
from results.compare.measurements import NOT_JUDGED
from results.record.outcomes import Outcome
from results.record.reading import CheckResult, Record, TestVerdict
from results.record.values import Json, same

HELD = frozenset({Outcome.PASS, Outcome.FIXED})
UNJUDGED = frozenset({Outcome.UNSUPPORTED, Outcome.ABSTAIN})

BOUND_ROUNDING = 1e-6
"""Relative difference up to which two derived bounds are one: the linear algebra library moves their last digits."""

ENSEMBLE_SPREAD = 0.5
"""The same for bounds of one origin: a last digit turns a random rounding, which makes it another draw of eight. If
another parameter or update is furthest out as well, its bound is no other bound of the same thing."""

UNCONFIRMED = "not confirmed here"
"""What is said of a known failure whose expectation was taken from another series."""


def verdicts(
    before: Mapping[str, TestVerdict], after: Mapping[str, TestVerdict], recoded: set[str], untimed: set[str]
) -> Iterator[Change]:
    """Every verdict and every bound that is not the same.

    Args:
        before, after: verdicts by test.
        recoded: tests whose code is another one.
        untimed: tests of costs whose control failed in one of the records.
    """
    for test in sorted(before.keys() | after.keys()):
        old, new = before.get(test), after.get(test)
        if old is None and new is not None:
            yield Change(ChangeKind.ADDED, new.clause, test, "", said(new), new.reason, new.repro, new.runs)
        elif new is None and old is not None:
            yield Change(ChangeKind.REMOVED, old.clause, test, said(old))
        elif old is not None and new is not None:
            if test in recoded:
                yield Change(
                    ChangeKind.NOT_COMPARABLE, new.clause, test, said(old), said(new), OTHER_CODE, new.repro, new.runs
                )
                continue
            kind, detail = kind_of(old, new), _why(new)
            if test in untimed and kind in (ChangeKind.NEWLY_UNSUPPORTED, ChangeKind.NEWLY_PASSING):
                kind, detail = ChangeKind.NOT_JUDGED, NOT_JUDGED
            if kind is not None:
                yield Change(kind, new.clause, test, said(old), said(new), detail, new.repro, new.runs)
            yield from _bounds(old, new)


def kind_of(old: TestVerdict, new: TestVerdict) -> ChangeKind | None:
    """What kind of a difference two verdicts of the same code are; None for none."""
    if Outcome.UNSTABLE in (old.outcome, new.outcome):
        return None if old.outcome is new.outcome else ChangeKind.UNSTABLE
    if new.outcome in UNJUDGED:
        return None if old.outcome in UNJUDGED else ChangeKind.NEWLY_UNSUPPORTED
    if new.outcome in HELD:
        return None if old.outcome in HELD else ChangeKind.NEWLY_PASSING
    if old.outcome in HELD or old.outcome in UNJUDGED:
        return ChangeKind.NEWLY_FAILING
    return None if old.signature == new.signature else ChangeKind.FAILING_OTHERWISE


def untimed(record: Record) -> Iterator[str]:
    """Tests of measurements whose control failed: the machine was busy, and nothing follows for the framework."""
    for verdict in record.verdicts:
        if verdict.outcome is Outcome.ABSTAIN and measuring(record, verdict):
            yield verdict.test


def measuring(record: Record, verdict: TestVerdict) -> bool:
    """Whether a verdict is about a cost that is measured."""
    clause = record.clauses.get(verdict.clause)
    return clause is not None and clause.level == "MEASUREMENT"


def came_to(verdict: TestVerdict) -> str:
    """A verdict's outcome, and in parentheses its signature if it has one."""
    return f"{verdict.outcome.value} ({verdict.signature})" if verdict.signature else verdict.outcome.value


def said(verdict: TestVerdict) -> str:
    """Outcome, signature, and the mark of what nobody has confirmed in this series."""
    return f"{came_to(verdict)}, {UNCONFIRMED}" if verdict.inferred_from else came_to(verdict)


def _why(verdict: TestVerdict) -> str:
    repeats = f"repeated: {', '.join(verdict.repeats)}." if verdict.repeats else ""
    return " ".join(filter(None, (verdict.reason or verdict.message, verdict.link, repeats)))


def _bounds(old: TestVerdict, new: TestVerdict) -> Iterator[Change]:
    former = _by_what(old.checks)
    for (what, place), check in _by_what(new.checks).items():
        previous = former.get((what, place))
        if previous is not None and not _same_bound(previous, check):
            yield Change(
                ChangeKind.BOUND_CHANGED, new.clause, f"{new.test}: {what}", shown(previous.bound), shown(check.bound)
            )


def _same_bound(old: CheckResult, new: CheckResult) -> bool:
    a, b = old.bound, new.bound
    if not (isinstance(a, float) and isinstance(b, float)):
        return same(a, b)
    if "origin" not in new.derivation or not same(old.derivation.get("origin"), new.derivation["origin"]):
        return same(a, b) or math.isclose(a, b, rel_tol=BOUND_ROUNDING)
    elsewhere = not same(old.derivation, new.derivation)
    return elsewhere or math.isclose(a, b, rel_tol=ENSEMBLE_SPREAD)


def _by_what(checks: Sequence[CheckResult]) -> dict[tuple[str, int], CheckResult]:
    placed: dict[tuple[str, int], CheckResult] = {}
    places: Counter[str] = Counter()
    for check in checks:
        placed[check.what, places[check.what]] = check
        places[check.what] += 1
    return placed


def shown(value: Json) -> str:
    """A value on one line; "" for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.6g}"
