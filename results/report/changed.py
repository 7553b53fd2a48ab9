"""The section of changes between two runs: environment, changes, and movements of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison
from results.compare.measurements import NOT_JUDGED
from results.compare.numbers import MovedNumbers, Movement
from results.record.reading import Record
from results.report.text import NAME, VALUE, TextPart, clean, linked
from results.show.clauses import number
from results.show.differences import UNSET, grouped, movements, not_judged, short

_REPRO = 2000


@dataclass(frozen=True)
class Difference:
    """One line of a comparison."""

    kind: str
    worse: bool
    clause: str
    subject: str
    old: str
    new: str
    detail: tuple[TextPart, ...]
    repro: str


@dataclass(frozen=True)
class ChangeCounts:
    """Changes of one kind by clause, the first few of each."""

    title: str
    worse: bool
    groups: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Number:
    """How one test's numbers moved."""

    movement: str
    clause: str
    subject: str
    detail: str
    tensor: str


@dataclass(frozen=True)
class ComparisonText:
    """A comparison as cleaned texts, the worst change first.

    Attributes:
        environment: differences between the environments.
        crossed, crossing: a command that separates framework and companions: what it runs, and its text.
        numbers: the tests whose numbers moved. moved: the number of tests of each movement.
        left: the costs that are not judged here, or "".
    """

    old: str
    new: str
    verdict: str
    worse: int
    refusals: tuple[str, ...]
    environment: tuple[str, ...]
    packages: tuple[str, ...]
    crossed: str
    crossing: str
    differences: tuple[Difference, ...]
    counted: tuple[ChangeCounts, ...]
    numbers: tuple[Number, ...]
    moved: str
    left: str


def compared(comparison: Comparison) -> ComparisonText:
    """The lines of a comparison."""
    changes = sorted(comparison.changes, key=lambda change: not change.kind.worse)
    worse = sum(change.kind.worse for change in changes)
    environment = comparison.environment
    timed = sum(change.kind is ChangeKind.NOT_JUDGED for change in changes)
    kinds = (kind for kind in ChangeKind if not kind.listed and kind is not ChangeKind.NOT_JUDGED)
    counted = (_counted(kind, [change for change in changes if change.kind is kind]) for kind in kinds)
    return ComparisonText(
        old=_name(comparison.old),
        new=_name(comparison.new),
        verdict=f"{_said(comparison, worse)} {comparison.compared} of {comparison.of} tests were compared.",
        worse=worse,
        refusals=tuple(clean(refusal, VALUE) for refusal in comparison.refusals),
        environment=tuple(clean(line, VALUE) for line in (*comparison.suite.lines(), *environment.lines())),
        packages=tuple(clean(step.line) for step in environment.packages),
        crossed=environment.crossed,
        crossing=clean(environment.crossing, _REPRO),
        differences=tuple(_difference(change) for change in changes if change.kind.listed),
        counted=tuple(one for one in counted if one.groups),
        numbers=tuple(_number(one) for one in comparison.numbers if one.movement is not Movement.IDENTICAL),
        moved=movements(comparison.numbers),
        left=f"{not_judged(timed)}: {NOT_JUDGED}." if timed else "",
    )


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


def _difference(change: Change) -> Difference:
    return Difference(
        kind=change.kind.value,
        worse=change.kind.worse,
        clause=clean(change.clause),
        subject=clean(short(change.subject), 2 * NAME),
        old=clean(change.old) or UNSET,
        new=clean(change.new) or UNSET,
        detail=linked(change.detail),
        repro=clean(change.repro, _REPRO),
    )


def _counted(kind: ChangeKind, changes: Sequence[Change]) -> ChangeCounts:
    groups = ((clean(group.clause), clean(group.subjects, 2 * VALUE)) for group in grouped(changes))
    return ChangeCounts(f"{len(changes)} {kind}", kind.worse, tuple(groups))


def _number(one: MovedNumbers) -> Number:
    subject, detail, tensor = clean(short(one.test), 2 * NAME), clean(one.detail, VALUE), clean(one.tensor, VALUE)
    return Number(one.movement.value, clean(one.clause), subject, detail, tensor)
