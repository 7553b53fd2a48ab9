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
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from results.compare.changes import PASS_OUTCOMES, Change, ChangeKind, Verdicts
from results.compare.numbers import ANOTHER_VALUE, another_oracle, as_float, describe_check, index_checks
from results.record.model import UNJUDGED, ClauseText, Json, Outcome, by_place, same
from results.record.reading import CheckResult, Measurement, Record, TestVerdict

UNCONFIRMED = "not confirmed here"
"""Marks a known failure whose expectation was taken from another series."""

NOT_JUDGED = (
    "times of separate runs are not comparable; run both versions alternately on one machine, several times each"
)
"""Why a timing is not judged, and how to compare it."""

BOUND_ROUNDING = 1e-6
"""Relative difference up to which two derived bounds are equal: linear algebra libraries change their last digits."""

ANOTHER_DRAW = 1.5
"""Factor up to which two bounds of one origin, parameter and update are equal: a last digit can flip a random rounding,
so the ensemble of eight is another draw. Of 44 such bounds in two records of one series, none differed by more."""

WIDER = 10.0
"""Factor by which any other bound must be wider to count as weaker. Derived bounds of one test in records of two
versions differed by up to a factor of 5.4 (JAX 0.6.2 and 0.10.2)."""

WIDE = f"more than {ANOTHER_DRAW} times as wide"
"""Detail of a bound that changed by so much and does not count as weaker."""

STATED = ("format", "method", "multiplier", "samples", "seed", "unit_roundoff")
"""What of a derivation the suite sets; the rest is measured, or names the parameter and update of the bound."""

_LISTED = 4
_EXPLAINED = ("finding", "link", "inferred_from", "leaks")
_CLAUSE_TEXTS = ("requirement", "source", "history", "family")
_ENTRIES = re.compile(r"(\d+) equal entries")
_COMMAND = re.compile(r"--(?:framework|seed)=\S+")

LEVELS = ("MEASUREMENT", "OBSERVATION", "MAY", "SHOULD", "MUST")
"""Levels of clauses, the least binding first."""

ORACLE = 1e-3
"""Relative difference of two losses of the reference beyond which the reference has changed. In a long run, another
linear algebra library's last digits may grow beyond `numbers.ORACLE_DIGITS`."""


def verdicts(
    before: Verdicts, after: Verdicts, reasons: Mapping[str, str], untimed: set[str], clauses: Mapping[str, ClauseText]
) -> Iterator[Change]:
    """Yield a change for each verdict that differs.

    Args:
        clauses: of the new record, by id.
        before, after: verdicts by test.
        reasons: why a test cannot be compared, by test.
        untimed: tests of costs whose control failed in one of the records.
    """
    bare = {name for name, text in clauses.items() if text.level in LEVELS[:2]}
    bare |= {old.clause for old in before.values() if _pass(old) and not old.checks}
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
            change = kind_of(old, new)
            if change is ChangeKind.NEWLY_PASSING and not new.checks and new.clause not in bare:
                change = ChangeKind.UNCHECKED
            detail = " ".join(filter(None, (new.reason or new.message, new.link, repeats)))
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
    fewer = len(after.samples) < len(before.samples) if before.control or not after.samples else False
    if fewer or (before.control and not after.control):
        a, b = (f"{len(side.samples)} samples, {len(side.control)} of the control" for side in (before, after))
        return Change(ChangeKind.TRACE_MISSING, after.clause, name, a, b)
    if not (before.samples and after.samples):
        return Change(ChangeKind.NOT_COMPARABLE, *named, "there are no samples")
    if varies(before) or varies(after):
        return Change(ChangeKind.NOT_JUDGED, *named, NOT_JUDGED)
    counted = before.samples[0], after.samples[0]
    if not all(map(math.isfinite, counted)):
        return None if same(*counted) else Change(ChangeKind.NOT_COMPARABLE, *named, "a sample is not finite")
    if counted[0] == counted[1]:
        return None
    if counted[1] < 0.0 <= counted[0]:
        return Change(ChangeKind.CONTRADICTED, *named, "a count cannot be negative")
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
        yield from _alteration(clause, clause, "the clause's", old.clauses[clause], new.clauses[clause], _CLAUSE_TEXTS)
        levels = old.clauses[clause].level, new.clauses[clause].level
        if levels[0] != levels[1]:
            ranks = [LEVELS.index(level) if level in LEVELS else -1 for level in levels]
            kind = ChangeKind.LEVEL_RAISED if ranks[1] > ranks[0] else ChangeKind.LEVEL_LOWERED
            yield Change(kind, clause, clause, *levels)
    for finding in sorted(old.findings.keys() & new.findings.keys()):
        texts = old.findings[finding], new.findings[finding]
        yield from _alteration(finding, finding, "the finding's", *texts, ("kind", "link"))
        a, b = (text.consequence for text in texts)
        if a is not b:
            kind = ChangeKind.LEVEL_LOWERED if b.rank > a.rank else ChangeKind.LEVEL_RAISED
            yield Change(kind, finding, finding, a.value, b.value, "consequence of the finding")
    yield from _inconsistencies(old, new)
    for verdict in new.verdicts:
        former = before.get(verdict.test) if verdict.test in after else None
        yield from _checks(former, verdict)
        if former is not None and kind_of(former, verdict) is None:
            yield from _alteration(verdict.clause, verdict.test, "the verdict's", former, verdict, _EXPLAINED)
    passing = [verdict for test, verdict in after.items() if _pass(before[test], verdict)]
    yield from _courses(old, new, {verdict.case: verdict.clause for verdict in passing})


def _pass(*verdicts: TestVerdict) -> bool:
    return all(verdict.outcome in PASS_OUTCOMES for verdict in verdicts)


def _alteration(
    clause: str, subject: str, whose: str, old: object, new: object, names: Iterable[str]
) -> Iterator[Change]:
    changed = [name.replace("_", " ") for name in names if getattr(old, name) != getattr(new, name)]
    if changed:
        yield Change(ChangeKind.ALTERED, clause, subject, detail=f"{whose} {' and '.join(changed)}")


def _inconsistencies(old: Record, new: Record) -> Iterator[Change]:
    """Yield one change for all verdicts of the new record that contradict its header, their commands or repetitions."""
    commands = {option for one in old.verdicts for option in _COMMAND.findall(one.repro)}
    errors = [
        [c.measured for one in side.verdicts if _pass(one) for c in one.checks if c.bound is not None]
        for side in (old, new)
    ]
    foreign = [one for one in new.verdicts if commands and {*_COMMAND.findall(one.repro)} - commands]
    for problem, wrong in (
        ("have another seed than the record", [one for one in new.verdicts if one.seed not in (None, new.seed)]),
        ("are repeated with another framework or seed", foreign),
        (
            "have errors, and each is exactly 0",
            new.verdicts if any(errors[0]) and errors[1] and not any(errors[1]) else (),
        ),
        ("pass, and failed when repeated", [one for one in new.verdicts if _pass(one) and {*one.repeats} - {"pass"}]),
    ):
        if wrong:
            detail = f"{len(wrong)} of {len(new.verdicts)} verdicts {problem}"
            yield Change(ChangeKind.INCONSISTENT, wrong[0].clause, wrong[0].test, detail=detail)


def _checks(old: TestVerdict | None, new: TestVerdict) -> Iterator[Change]:
    """Yield what the checks of a verdict contradict, and what they demand less, or otherwise, than those before."""
    named = new.clause, new.test
    pairs = [] if old is None else _pair_checks(old.checks, new.checks)
    partners = {id(check): former for former, check in pairs}
    wrong = [check for check in new.checks if _pass(new) and _is_contradicted(partners.get(id(check)), check)]
    if wrong:
        want = value_text(wrong[0].expected if wrong[0].bound is None else wrong[0].bound)
        got = f"{wrong[0].what}: got {value_text(wrong[0].measured)}, want {want}"
        yield Change(ChangeKind.CONTRADICTED, *named, "", new.outcome.value, got, new.repro)
    if old is None or old.checks == new.checks:
        return
    for former, check in pairs:
        yield from _bounds(*named, former, check)
    if not _pass(old, new):
        return
    totals = _totals(old.checks, {}), _totals(new.checks, partners)
    fewer = [name for name in totals[0] if totals[1][name] < totals[0][name] and not wrong]
    if fewer:
        missing = Counter(map(describe_check, old.checks)) - Counter(map(describe_check, new.checks))
        detail = f"missing: {next(iter(missing))}" if missing else ""
        a, b = (f"{total[fewer[0]]} {fewer[0]}" for total in totals)
        yield Change(ChangeKind.FEWER_CHECKS, *named, a, b, detail)
        return
    details = {
        f"{name} of the derivation: {value_text(was) or 'unset'} → {value_text(now) or 'unset'}"
        for former, check in pairs
        for name in STATED
        if not same(was := former.derivation.get(name), now := check.derivation.get(name))
        and (name != "multiplier" or same(former.bound, check.bound))
    }
    details |= {ANOTHER_VALUE for a, b in pairs if value_text(a.expected) != value_text(b.expected)}
    details |= {"more checks"} if len(new.checks) > len(old.checks) else set()
    yield from (Change(ChangeKind.ALTERED, *named, detail=detail) for detail in sorted(details))


def _pair_checks(old: Sequence[CheckResult], new: Sequence[CheckResult]) -> list[tuple[CheckResult, CheckResult]]:
    """Return the checks of one test in pairs: of the same words, and the others in order if there are as many."""
    former, latter = index_checks(old), index_checks(new)
    pairs = [(former[key], latter[key]) for key in latter if key in former]
    for has_bound in (True, False):
        a = [check for key, check in former.items() if key not in latter and (check.bound is None) is not has_bound]
        b = [check for key, check in latter.items() if key not in former and (check.bound is None) is not has_bound]
        pairs += zip(a, b, strict=True) if len(a) == len(b) else ()
    return pairs


def _totals(checks: Sequence[CheckResult], partners: Mapping[int, CheckResult]) -> dict[str, int]:
    """Return amounts of what is checked; a check that lost its bound has it in `partners`, the former checks by id."""
    entries = (_ENTRIES.fullmatch(str(check.expected)) for check in checks)
    return {
        "checks": len(checks),
        "checks with a bound": sum(partners.get(id(check), check).bound is not None for check in checks),
        "different checks": len({*map(describe_check, checks)}),
        "equal entries": sum(int(found[1]) for found in entries if found),
    }


def _is_contradicted(former: CheckResult | None, check: CheckResult) -> bool:
    """Return whether a passing test's check failed, or did by its own numbers or texts; arrays have no exact text."""
    if not check.passed or former == check:
        return not check.passed
    error, bound = as_float(check.measured), as_float(check.bound)
    if bound is not None:
        is_distance = "multiplier" in check.derivation
        return error is None or math.isnan(error) or error > bound or (is_distance and error < 0.0)
    if not isinstance(check.expected, str) or "[" in check.expected or check.measured == check.expected:
        return False
    was_equal = former is not None and former.measured == former.expected == check.expected
    return was_equal or former == replace(check, passed=False) or _ENTRIES.fullmatch(check.expected) is not None


def _bounds(clause: str, test: str, old: CheckResult, new: CheckResult) -> Iterator[Change]:
    """Yield the change of a bound, unless another draw of its ensemble, or another parameter, may explain it."""
    a, b, what, terms = as_float(old.bound), as_float(new.bound), "", (old.derivation, new.derivation)
    sides, multipliers = (old.bound, new.bound), [term.get("multiplier") for term in terms]
    if same(*sides):
        return
    if a is None or b is None:
        kind = ChangeKind.BOUND_WIDER if b is None else ChangeKind.BOUND_CHANGED
    elif not same(*multipliers):
        is_larger = b > a and not (as_float(multipliers[1]) or math.inf) <= (as_float(multipliers[0]) or 0.0)
        kind = ChangeKind.BOUND_WIDER if is_larger else ChangeKind.BOUND_CHANGED
        sides, what = (multipliers[0], multipliers[1]), "multiplier"
    else:
        origins, ratio = [term.get("origin") for term in terms], b / a if a else math.inf
        is_draw = origins[0] is not None and origins[1] in (None, origins[0])
        is_there = origins[1] is None or all(same(*(t.get(name) for t in terms)) for name in ("parameter", "update"))
        limit = ANOTHER_DRAW if is_draw and is_there else WIDER
        least = 1.0 / ANOTHER_DRAW if is_there else 0.0
        if least <= ratio <= limit if is_draw else math.isclose(ratio, 1.0, rel_tol=BOUND_ROUNDING):
            return
        kind = ChangeKind.BOUND_CHANGED if ratio <= limit else ChangeKind.BOUND_WIDER
        what = WIDE if ANOTHER_DRAW < ratio <= WIDER else ""
    yield Change(kind, clause, f"{test}: {new.what}", value_text(sides[0]), value_text(sides[1]), what)


def _least_ratio(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the smallest ratio of new to old over all updates; 0 without comparable numbers."""
    return min((b / a for a, b in zip(old, new, strict=False) if math.isfinite(a) and a > 0.0), default=0.0)


def _courses(old: Record, new: Record, passing: Mapping[str, str]) -> Iterator[Change]:
    """Yield a change for each curve or fingerprint that the new record lacks, and for each changed reference.

    Args:
        passing: clauses of the tests that hold in both records, by case.
    """
    sizes = _sizes(new)
    for (kind, key, case), before in _sizes(old).items():
        if case not in passing:
            continue
        subject, after = (passing[case], f"{passing[case]}/{case}"), sizes.get((kind, key, case), {})
        fewer = [name for name, size in before.items() if after.get(name, 0) < size]
        if fewer:
            named = f"{kind} {', '.join(map(repr, fewer[:_LISTED]))}" if after else f"{kind} {key!r}"
            left = [f"{after[name]} of {before[name]} steps" for name in fewer if name in after]
            yield Change(ChangeKind.TRACE_MISSING, *subject, named, left[0] if left else "")
        elif sum(after.values()) > sum(before.values()):
            yield Change(ChangeKind.ALTERED, *subject, detail=f"more {kind}")
    former = {trace.place: trace.curves for trace in old.traces}
    for trace in new.traces:
        curves = former.get(trace.place)
        if curves is None or trace.case not in passing:
            continue
        clause, test = passing[trace.case], f"{passing[trace.case]}/{trace.case}"
        was_exact, is_exact = ("loss" in side and side["loss"] == side.get("exact") for side in (curves, trace.curves))
        if is_exact and not was_exact:
            detail = "the losses are the reference's, in float64"
            yield Change(ChangeKind.INCONSISTENT, clause, test, detail=detail)
        for name in ("bound", "spread"):
            ratio = _least_ratio(curves.get(name, ()), trace.curves.get(name, ()))
            if ratio > WIDER:
                wider = f"{name} of the losses: × {ratio:.4g} or more"
                yield Change(ChangeKind.BOUND_WIDER, clause, test, detail=wider)
        if another_oracle(curves, trace.curves, ORACLE):
            ends = [f"{(side['exact'] or ('',))[-1]:.9}" for side in (curves, trace.curves)]
            detail = "final loss of the reference"
            yield Change(ChangeKind.ORACLE_CHANGED, clause, test, ends[0], ends[1], detail)


def _sizes(record: Record) -> dict[tuple[str, str, str], dict[str, int]]:
    """Return the number of steps of each curve, and 1 for each array, by name, of all traces and fingerprints."""
    sizes = {
        ("curves", *one.place): {name: len(points) for name, points in one.curves.items()} for one in record.traces
    }
    return sizes | {("fingerprints", *one.place): {array.name: 1 for array in one.arrays} for one in record.tensors}
