"""The section of changes between two runs: environment, changes, and movements of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison
from results.compare.numbers import MovedNumbers, Movement
from results.compare.verdicts import NOT_JUDGED
from results.record.reading import Record
from results.report.text import NAME, VALUE, clean, linked
from results.show.clauses import number
from results.show.differences import UNSET, grouped, movements, not_judged, short

_REPRO = 2000


def compared(comparison: Comparison) -> dict[str, Any]:
    """A comparison as cleaned texts for the template, the worst change first.

    `crossing` is a command that separates framework and companions, and `crossed` what it runs; `numbers` are the tests
    whose numbers moved, and `moved` how many tests there are of each movement; `left` names costs that are not judged.
    """
    changes = sorted(comparison.changes, key=lambda change: not change.kind.worse)
    worse = sum(change.kind.worse for change in changes)
    environment = comparison.environment
    timed = sum(change.kind is ChangeKind.NOT_JUDGED for change in changes)
    kinds = (kind for kind in ChangeKind if not kind.listed and kind is not ChangeKind.NOT_JUDGED)
    counted = (_counted(kind, [change for change in changes if change.kind is kind]) for kind in kinds)
    return {
        "old": _name(comparison.old),
        "new": _name(comparison.new),
        "verdict": f"{_said(comparison, worse)} {comparison.compared} of {comparison.of} tests were compared.",
        "worse": worse,
        "refusals": tuple(clean(refusal, VALUE) for refusal in comparison.refusals),
        "environment": tuple(clean(line, VALUE) for line in (*comparison.suite.lines(), *environment.lines())),
        "packages": tuple(clean(step.line) for step in environment.packages),
        "crossed": environment.crossed,
        "crossing": clean(environment.crossing, _REPRO),
        "differences": tuple(_difference(change) for change in changes if change.kind.listed),
        "counted": [one for one in counted if one["groups"]],
        "numbers": tuple(_number(one) for one in comparison.numbers if one.movement is not Movement.IDENTICAL),
        "moved": movements(comparison.numbers),
        "left": f"{not_judged(timed)}: {NOT_JUDGED}." if timed else "",
    }


def _said(comparison: Comparison, worse: int) -> str:
    if comparison.status == 2:
        return "Cannot be judged."
    if comparison.status == 1:
        return f"Regressions found: {worse} of {number(len(comparison.changes), 'change')}."
    if comparison.identical:
        return "No regressions: the two runs are identical."
    drifted = comparison.drifted
    return f"No regressions; {number(drifted, 'test')} drifted." if drifted else "No regressions."


def _name(record: Record) -> str:
    series = record.series
    parts = (series.framework, record.variant.framework_version, series.mode, series.device)
    return f"{' '.join(clean(part, 48) for part in parts if part)}, {clean(record.started, 40)}"


def _difference(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "worse": change.kind.worse,
        "clause": clean(change.clause),
        "subject": clean(short(change.subject), 2 * NAME),
        "old": clean(change.old) or UNSET,
        "new": clean(change.new) or UNSET,
        "detail": linked(change.detail),
        "repro": clean(change.repro, _REPRO),
    }


def _counted(kind: ChangeKind, changes: Sequence[Change]) -> dict[str, Any]:
    """Changes of one kind by clause, the first few of each."""
    groups = [(clean(group.clause), clean(group.subjects, 2 * VALUE)) for group in grouped(changes)]
    return {"title": f"{len(changes)} {kind}", "worse": kind.worse, "groups": groups}


def _number(one: MovedNumbers) -> dict[str, str]:
    return {
        "movement": one.movement.value,
        "clause": clean(one.clause),
        "subject": clean(short(one.test), 2 * NAME),
        "detail": clean(one.detail, VALUE),
        "tensor": clean(one.tensor, VALUE),
    }
