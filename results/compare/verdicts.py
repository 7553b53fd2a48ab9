"""Changes of verdicts between two records, by what the framework did, expected or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from results.compare.changes import Change, ChangeKind
from results.compare.comparability import PASS_OUTCOMES, Verdicts
from results.compare.measurements import NOT_JUDGED
from results.record.outcomes import UNJUDGED, Outcome
from results.record.reading import Record, TestVerdict
from results.record.values import Json

UNCONFIRMED = "not confirmed here"
"""Marks a known failure whose expectation was taken from another series."""


def verdicts(before: Verdicts, after: Verdicts, reasons: Mapping[str, str], untimed: set[str]) -> Iterator[Change]:
    """Every verdict that differs.

    Args:
        before, after: verdicts by test.
        reasons: why a test cannot be compared, by test.
        untimed: tests of costs whose control failed in one of the records.
    """
    for test in sorted(before.keys() | after.keys()):
        old, new = before.get(test), after.get(test)
        if old is None and new is not None:
            detail = reasons.get(test, new.reason)
            yield Change(ChangeKind.ADDED, new.clause, test, "", said(new), detail, new.repro, new.runs)
        elif new is None and old is not None:
            kind = ChangeKind.NOT_COMPARABLE if test in reasons else ChangeKind.REMOVED
            yield Change(kind, old.clause, test, said(old), "", reasons.get(test, ""))
        elif old is not None and new is not None:
            change, detail = kind_of(old, new), _why(new)
            if test in reasons:
                change, detail = ChangeKind.NOT_COMPARABLE, reasons[test]
            elif test in untimed and change in (ChangeKind.NEWLY_UNJUDGED, ChangeKind.NEWLY_PASSING):
                change, detail = ChangeKind.NOT_JUDGED, NOT_JUDGED
            if change is not None:
                yield Change(change, new.clause, test, said(old), said(new), detail, new.repro, new.runs)


def kind_of(old: TestVerdict, new: TestVerdict) -> ChangeKind | None:
    """The kind of difference between two verdicts of the same code; None for none."""
    if Outcome.UNSTABLE in (old.outcome, new.outcome):
        return None if old.outcome is new.outcome else ChangeKind.UNSTABLE
    if new.outcome in UNJUDGED:
        return None if old.outcome in UNJUDGED else ChangeKind.NEWLY_UNJUDGED
    if new.outcome in PASS_OUTCOMES:
        return None if old.outcome in PASS_OUTCOMES else ChangeKind.NEWLY_PASSING
    if old.outcome in PASS_OUTCOMES or old.outcome in UNJUDGED:
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
    """Outcome, signature, and `UNCONFIRMED` if it applies."""
    return f"{came_to(verdict)}, {UNCONFIRMED}" if verdict.inferred_from else came_to(verdict)


def _why(verdict: TestVerdict) -> str:
    repeats = f"repeated: {', '.join(verdict.repeats)}." if verdict.repeats else ""
    return " ".join(filter(None, (verdict.reason or verdict.message, verdict.link, repeats)))


def value_text(value: Json) -> str:
    """A value on one line; "" for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.6g}"
