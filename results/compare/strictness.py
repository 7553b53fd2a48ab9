"""Whether two records demand the same of the same tests: levels, checks, bounds, curves, and the reference itself.

A suite that demands less can hide a regression: each such change is reported like a verdict that got worse. Compared
are tests that hold in both records; one that fails ends early.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from results.compare.changes import Change, ChangeKind
from results.compare.comparability import PASS_OUTCOMES, Verdicts
from results.compare.numbers import another_oracle, keyed, words
from results.compare.verdicts import value_text
from results.record.reading import CheckResult, Record
from results.record.values import Json, same

BOUND_ROUNDING = 1e-6
"""Relative difference up to which two derived bounds are one: the linear algebra library moves their last digits."""

ENSEMBLE_SPREAD = 0.5
"""The same for bounds of one origin: a last digit can flip a random rounding, which makes it a different draw of eight.
If the largest deviation is at a different parameter or update, the two bounds are not comparable."""

WIDER = 10.0
"""How many times as wide a bound has to be to count as weaker. Derived bounds of one test in records of two versions
were up to 5.4 times apart (JAX 0.6.2 and 0.10.2)."""

LEVELS = ("MEASUREMENT", "OBSERVATION", "MAY", "SHOULD", "MUST")
"""How binding a clause is, the least first."""

ORACLE = 1e-3
"""Relative difference of two losses of the reference beyond which the reference has changed. A long run may carry the
last digits of another linear algebra library further than `numbers.ORACLE_DIGITS`."""


def demands(old: Record, new: Record, before: Verdicts, after: Verdicts) -> Iterator[Change]:
    """Changes in the demands of the new record.

    Args:
        before, after: verdicts by test; of those that can be compared.
    """
    yield from _levels(old, new, {verdict.clause for verdict in after.values()})
    yield from _contradicted(new)
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


def _levels(old: Record, new: Record, clauses: set[str]) -> Iterator[Change]:
    for clause in sorted(clauses & old.clauses.keys()):
        levels = old.clauses[clause].level, new.clauses[clause].level
        if levels[0] != levels[1]:
            ranks = [LEVELS.index(level) if level in LEVELS else -1 for level in levels]
            kind = ChangeKind.LEVEL_RAISED if ranks[1] > ranks[0] else ChangeKind.LEVEL_LOWERED
            yield Change(kind, clause, clause, *levels)


def _contradicted(new: Record) -> Iterator[Change]:
    for verdict in new.verdicts:
        failed = next((check for check in verdict.checks if not check.passed), None)
        if verdict.outcome in PASS_OUTCOMES and failed is not None:
            got = f"{failed.what}: got {value_text(failed.measured)}, want {value_text(failed.expected)}"
            kind = ChangeKind.CONTRADICTED
            yield Change(kind, verdict.clause, verdict.test, "", verdict.outcome.value, got, verdict.repro)


def _checks(test: str, clause: str, old: Sequence[CheckResult], new: Sequence[CheckResult]) -> Iterator[Change]:
    missing = Counter(map(words, old)) - Counter(map(words, new))
    if len(new) < len(old):
        detail = f"missing: {next(iter(missing))}"
        yield Change(ChangeKind.FEWER_CHECKS, clause, test, f"{len(old)} checks", f"{len(new)} checks", detail)


def _bounds(test: str, clause: str, old: Sequence[CheckResult], new: Sequence[CheckResult]) -> Iterator[Change]:
    former = keyed(old)
    for place, check in keyed(new).items():
        previous = former.get(place)
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
    """Whether a bound demands less: it is that many times as wide, or no bound any more."""
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
    """How many times as large every update's number is at least; 0 without any that can be compared."""
    return min((b / a for a, b in zip(old, new, strict=False) if math.isfinite(a) and a > 0.0), default=0.0)


def _courses(old: Record, new: Record, passing: Mapping[str, str]) -> Iterator[Change]:
    """Curves and fingerprints that the new record lacks, and references that compute something else.

    Args:
        passing: clauses of the tests that hold in both, by case.
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
