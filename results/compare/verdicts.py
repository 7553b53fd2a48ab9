"""Changes of verdicts and costs between two records.

Verdicts are compared by the framework's behaviour, expected or not. Counted costs are compared exactly. Timings are not
judged, because the two records come from different times: identical code differs by several percent between processes,
and by more on a busy machine (docs/race.md). `results.compare.ratio.ratio` compares times that were taken in turns
inside one process.
"""

import math
from collections.abc import Iterator, Mapping
from statistics import median

from results.compare.changes import PASS_OUTCOMES, Change, ChangeKind, Verdicts
from results.record.model import UNJUDGED, Outcome, by_place
from results.record.reading import Measurement, Record, TestVerdict
from results.record.values import Json, same

UNCONFIRMED = "not confirmed here"
"""Marks a known failure whose expectation was taken from another series."""

NOT_JUDGED = (
    "times of separate runs are not comparable; run both versions alternately on one machine, several times each"
)
"""Why a timing is not judged, and how to compare it."""


def verdicts(before: Verdicts, after: Verdicts, reasons: Mapping[str, str], untimed: set[str]) -> Iterator[Change]:
    """Yield a change for each verdict that differs.

    Args:
        before, after: verdicts by test.
        reasons: why a test cannot be compared, by test.
        untimed: tests of costs whose control failed in one of the records.
    """
    for test in sorted(before.keys() | after.keys()):
        old, new = before.get(test), after.get(test)
        if old is None and new is not None:
            detail = reasons.get(test, new.reason)
            yield Change(ChangeKind.ADDED, new.clause, test, "", describe(new), detail, new.repro, new.runs)
        elif new is None and old is not None:
            kind = ChangeKind.NOT_COMPARABLE if test in reasons else ChangeKind.REMOVED
            yield Change(kind, old.clause, test, describe(old), "", reasons.get(test, ""))
        elif old is not None and new is not None:
            repeats = f"repeated: {', '.join(new.repeats)}." if new.repeats else ""
            change, detail = kind_of(old, new), " ".join(filter(None, (new.reason or new.message, new.link, repeats)))
            if test in reasons:
                change, detail = ChangeKind.NOT_COMPARABLE, reasons[test]
            elif test in untimed and change in (ChangeKind.NEWLY_UNJUDGED, ChangeKind.NEWLY_PASSING):
                change, detail = ChangeKind.NOT_JUDGED, NOT_JUDGED
            if change is not None:
                yield Change(change, new.clause, test, describe(old), describe(new), detail, new.repro, new.runs)


def kind_of(old: TestVerdict, new: TestVerdict) -> ChangeKind | None:
    """Return the kind of difference between two verdicts of the same code; None for none."""
    if Outcome.UNSTABLE in (old.outcome, new.outcome):
        return None if old.outcome is new.outcome else ChangeKind.UNSTABLE
    if new.outcome in UNJUDGED:
        return None if old.outcome in UNJUDGED else ChangeKind.NEWLY_UNJUDGED
    if new.outcome in PASS_OUTCOMES:
        return None if old.outcome in PASS_OUTCOMES else ChangeKind.NEWLY_PASSING
    if old.outcome in PASS_OUTCOMES or old.outcome in UNJUDGED:
        return ChangeKind.NEWLY_FAILING
    return None if old.signature == new.signature else ChangeKind.FAILING_OTHERWISE


def find_untimed_tests(record: Record) -> Iterator[str]:
    """Yield tests of measurements whose control failed: the machine was busy, so they say nothing of the framework."""
    for verdict in record.verdicts:
        if verdict.outcome is Outcome.ABSTAIN and measuring(record, verdict):
            yield verdict.test


def measuring(record: Record, verdict: TestVerdict) -> bool:
    """Return whether a verdict is about a cost that is measured."""
    clause = record.clauses.get(verdict.clause)
    return clause is not None and clause.level == "MEASUREMENT"


def came_to(verdict: TestVerdict) -> str:
    """Return a verdict's outcome, and in parentheses its signature if it has one."""
    return f"{verdict.outcome.value} ({verdict.signature})" if verdict.signature else verdict.outcome.value


def describe(verdict: TestVerdict) -> str:
    """Return outcome, signature, and `UNCONFIRMED` if it applies."""
    return f"{came_to(verdict)}, {UNCONFIRMED}" if verdict.inferred_from else came_to(verdict)


def value_text(value: Json) -> str:
    """Return a value on one line; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.6g}"


def measurements(old: Record, new: Record, reasons: Mapping[str, str], untimed: set[str]) -> Iterator[Change]:
    """Yield a change for each cost that differs.

    Args:
        reasons: why a test cannot be compared, by test.
        untimed: tests whose control failed in one of the records: their costs may be missing there.
    """
    costs = by_place(old.measurements), by_place(new.measurements)
    for location in sorted(costs[0].keys() | costs[1].keys()):
        clause, key, case = location
        test, name = f"{clause}/{case}", f"{key}/{case}" if case else key
        if test in untimed:
            continue
        before, after = (side.get(location) for side in costs)
        if before is None and after is not None:
            yield Change(ChangeKind.ADDED, clause, name, "", f"{len(after.samples)} samples in {after.unit}")
        elif after is None and before is not None:
            kind = ChangeKind.NOT_COMPARABLE if test in reasons else ChangeKind.REMOVED
            amounts = f"{len(before.samples)} samples in {before.unit}", ""
            yield Change(kind, clause, name, *amounts, reasons.get(test, ""))
        elif before is not None and after is not None:
            change = _cost(name, before, after, reasons.get(test, ""))
            if change is not None:
                yield change


def _cost(name: str, before: Measurement, after: Measurement, reason: str) -> Change | None:
    if same((before.samples, before.control, before.unit), (after.samples, after.control, after.unit)):
        return None
    named = after.clause, name, amount(before), amount(after)
    if reason:
        return Change(ChangeKind.NOT_COMPARABLE, *named, reason)
    if before.unit != after.unit:
        return Change(ChangeKind.NOT_COMPARABLE, *named, f"the units differ: {before.unit} and {after.unit}")
    if not (before.samples and after.samples):
        return Change(ChangeKind.NOT_COMPARABLE, *named, "there are no samples")
    if varies(before) or varies(after):
        return Change(ChangeKind.NOT_JUDGED, *named, NOT_JUDGED)
    counted = before.samples[0], after.samples[0]
    if not all(map(math.isfinite, counted)):
        return None if same(*counted) else Change(ChangeKind.NOT_COMPARABLE, *named, "a sample is not finite")
    if counted[0] == counted[1]:
        return None
    kind = ChangeKind.MEASURE_WORSE if counted[1] > counted[0] else ChangeKind.MEASURE_BETTER
    more = f"{counted[1] - counted[0]:+.6g}{_unit(after)}"
    times = f", ratio {counted[1] / counted[0]:.6g}" if counted[0] > 0.0 else ""
    return Change(kind, *named, f"{more}{times}, counted exactly")


def varies(measurement: Measurement) -> bool:
    """Return whether a cost is one that is timed rather than counted."""
    return any(not same(sample, measurement.samples[0]) for sample in measurement.samples)


def amount(measurement: Measurement) -> str:
    """Return a count in full; for a timing, the median and its ratio to the control, if there is one."""
    if not measurement.samples:
        return ""
    if not varies(measurement):
        count = float(measurement.samples[0])
        exact = f"{count:,.0f}" if count.is_integer() and abs(count) < 1e15 else repr(count)
        return f"{exact}{_unit(measurement)}"
    from results.compare.ratio import ratio  # takes NumPy

    relative = ratio(measurement.control, measurement.samples)
    times = (
        f", {relative.low:.4g} to {relative.high:.4g} × its control" if measurement.control and relative.judged else ""
    )
    return f"{median(measurement.samples):.4g}{_unit(measurement)}{times}"


def _unit(measurement: Measurement) -> str:
    return "" if measurement.unit == "1" else f" {measurement.unit}"
