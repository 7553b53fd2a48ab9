"""Changes of verdicts, costs and demands between two records.

Verdicts are compared by the framework's behaviour, expected or not. Counted costs are compared exactly. Timings are not
judged, because the two records come from different times: identical code differs by several percent between processes,
and by more on a busy machine (docs/race.md). `results.compare.ratio.ratio` compares times that were taken in turns
inside one process.

A suite that demands less can hide a regression, so a lower level, fewer checks, a wider bound, a missing curve and
another reference are reported like a verdict that got worse. These demands are compared only for tests that hold in
both records, because a test that fails ends early.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from results.compare.changes import PASS_OUTCOMES, Change, ChangeKind, Verdicts
from results.compare.numbers import another_oracle, describe_check, index_checks
from results.record.model import UNJUDGED, Outcome, by_place
from results.record.reading import CheckResult, Measurement, Record, TestVerdict
from results.record.values import Json, same

UNCONFIRMED = "not confirmed here"
"""Marks a known failure whose expectation was taken from another series."""

NOT_JUDGED = (
    "times of separate runs are not comparable; run both versions alternately on one machine, several times each"
)
"""Why a timing is not judged, and how to compare it."""

BOUND_ROUNDING = 1e-6
"""Relative difference up to which two derived bounds are equal: linear algebra libraries change their last digits."""

ENSEMBLE_SPREAD = 0.5
"""Relative difference up to which two bounds of one origin are equal: a last digit can flip a random rounding, so the
ensemble of eight is another draw. Bounds at different parameters or updates are not comparable."""

WIDER = 10.0
"""Factor by which a bound must be wider to count as weaker. Derived bounds of one test in records of two versions
differed by up to a factor of 5.4 (JAX 0.6.2 and 0.10.2)."""

LEVELS = ("MEASUREMENT", "OBSERVATION", "MAY", "SHOULD", "MUST")
"""Levels of clauses, the least binding first."""

ORACLE = 1e-3
"""Relative difference of two losses of the reference beyond which the reference has changed. In a long run, another
linear algebra library's last digits may grow beyond `numbers.ORACLE_DIGITS`."""


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


def demands(old: Record, new: Record, before: Verdicts, after: Verdicts) -> Iterator[Change]:
    """Yield the changes in the demands of the new record.

    Args:
        before, after: verdicts of the comparable tests, by test.
    """
    clauses = {verdict.clause for verdict in after.values()}
    for clause in sorted(clauses & old.clauses.keys()):
        levels = old.clauses[clause].level, new.clauses[clause].level
        if levels[0] != levels[1]:
            ranks = [LEVELS.index(level) if level in LEVELS else -1 for level in levels]
            kind = ChangeKind.LEVEL_RAISED if ranks[1] > ranks[0] else ChangeKind.LEVEL_LOWERED
            yield Change(kind, clause, clause, *levels)
    yield from _find_contradictions(new)
    common = before.keys() & after.keys()
    moved = {test for test in common if before[test].checks != after[test].checks}
    passing = sorted(
        test for test in common if before[test].outcome in PASS_OUTCOMES and after[test].outcome in PASS_OUTCOMES
    )
    for test in filter(moved.__contains__, passing):
        yield from _checks(test, after[test].clause, before[test].checks, after[test].checks)
    for test in sorted(moved):
        yield from _bounds(test, after[test].clause, before[test].checks, after[test].checks)
    yield from _courses(old, new, {after[test].case: after[test].clause for test in passing})


def _find_contradictions(new: Record) -> Iterator[Change]:
    for verdict in new.verdicts:
        failed = next((check for check in verdict.checks if not check.passed), None)
        if verdict.outcome in PASS_OUTCOMES and failed is not None:
            got = f"{failed.what}: got {value_text(failed.measured)}, want {value_text(failed.expected)}"
            kind = ChangeKind.CONTRADICTED
            yield Change(kind, verdict.clause, verdict.test, "", verdict.outcome.value, got, verdict.repro)


def _checks(test: str, clause: str, old: Sequence[CheckResult], new: Sequence[CheckResult]) -> Iterator[Change]:
    missing = Counter(map(describe_check, old)) - Counter(map(describe_check, new))
    if len(new) < len(old):
        detail = f"missing: {next(iter(missing))}"
        yield Change(ChangeKind.FEWER_CHECKS, clause, test, f"{len(old)} checks", f"{len(new)} checks", detail)


def _bounds(test: str, clause: str, old: Sequence[CheckResult], new: Sequence[CheckResult]) -> Iterator[Change]:
    former = index_checks(old)
    for key, check in index_checks(new).items():
        previous = former.get(key)
        if previous is None:
            continue
        kind, what, before, after = None, "", previous.bound, check.bound
        multipliers = previous.derivation.get("multiplier"), check.derivation.get("multiplier")
        if not same(*multipliers):
            what, (before, after) = "multiplier", multipliers
            kind = _wider(before, after, 1.0)
        elif not _same_bound(previous, check):
            kind = _wider(before, after, WIDER)
        if kind is not None:
            yield Change(kind, clause, f"{test}: {check.what}", value_text(before), value_text(after), what)


def _wider(old: Json, new: Json, times: float) -> ChangeKind:
    """Return the kind of a changed bound; it demands less if it is `times` as wide, or no longer a bound."""
    if isinstance(old, int | float) and isinstance(new, int | float):
        return ChangeKind.BOUND_WIDER if not new <= times * old else ChangeKind.BOUND_CHANGED
    return ChangeKind.BOUND_WIDER if new is None else ChangeKind.BOUND_CHANGED


def _same_bound(old: CheckResult, new: CheckResult) -> bool:
    a, b = old.bound, new.bound
    if not (isinstance(a, float) and isinstance(b, float)):
        return same(a, b)
    if "origin" not in new.derivation or not same(old.derivation.get("origin"), new.derivation["origin"]):
        return same(a, b) or math.isclose(a, b, rel_tol=BOUND_ROUNDING)
    if not same(old.derivation, new.derivation):
        return not b > WIDER * a
    return math.isclose(a, b, rel_tol=ENSEMBLE_SPREAD)


def _least_ratio(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the smallest ratio of new to old over all updates; 0 without comparable numbers."""
    return min((b / a for a, b in zip(old, new, strict=False) if math.isfinite(a) and a > 0.0), default=0.0)


def _courses(old: Record, new: Record, passing: Mapping[str, str]) -> Iterator[Change]:
    """Yield a change for each curve or fingerprint that the new record lacks, and for each changed reference.

    Args:
        passing: clauses of the tests that hold in both records, by case.
    """
    for kind, before, after in (
        ("curves", {t.place: t for t in old.traces}, {t.place: t for t in new.traces}),
        ("fingerprints", {t.place: t for t in old.tensors}, {t.place: t for t in new.tensors}),
    ):
        for key, case in sorted(before.keys() - after.keys()):
            if case in passing:
                yield Change(ChangeKind.TRACE_MISSING, passing[case], f"{passing[case]}/{case}", f"{kind} {key!r}")
    former = {trace.place: trace.curves for trace in old.traces}
    for trace in new.traces:
        curves = former.get(trace.place)
        if curves is None or trace.case not in passing:
            continue
        clause, test = passing[trace.case], f"{passing[trace.case]}/{trace.case}"
        if lost := sorted(curves.keys() - trace.curves.keys() - {"bound"}):
            yield Change(ChangeKind.TRACE_MISSING, clause, test, f"curves {', '.join(map(repr, lost))}")
        for name in ("bound", "spread"):
            ratio = _least_ratio(curves.get(name, ()), trace.curves.get(name, ()))
            if ratio > WIDER:
                yield Change(
                    ChangeKind.BOUND_WIDER, clause, test, "", "", f"{name} of the losses: × {ratio:.4g} or more"
                )
        if another_oracle(curves, trace.curves, ORACLE):
            ends = [f"{(side['exact'] or ('',))[-1]:.9}" for side in (curves, trace.curves)]
            detail = "final loss of the reference"
            yield Change(ChangeKind.ORACLE_CHANGED, clause, test, ends[0], ends[1], detail)
