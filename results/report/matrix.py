"""The matrix: clauses down by family, runs across, every outcome counted; and what one framework alone fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.outcomes import Outcome
from results.records import ClauseText, Record, Verdict
from results.report.runs import judged
from results.report.text import NAME, VALUE, Piece, clean, href, linked

SYMBOLS: Mapping[Outcome, str] = {
    Outcome.PASS: "✓",
    Outcome.KNOWN: "◆",
    Outcome.UNSUPPORTED: "–",
    Outcome.ABSTAIN: "○",
    Outcome.FAIL: "✗",
    Outcome.MISDECLARED: "≠",
    Outcome.FIXED: "↑",
    Outcome.UNSTABLE: "~",
    Outcome.ERROR: "!",
    Outcome.TIMEOUT: "∞",
    Outcome.CRASH: "†",
}
GRAVITY = (
    Outcome.CRASH,
    Outcome.TIMEOUT,
    Outcome.ERROR,
    Outcome.FAIL,
    Outcome.MISDECLARED,
    Outcome.FIXED,
    Outcome.KNOWN,
    Outcome.UNSTABLE,
    Outcome.ABSTAIN,
    Outcome.UNSUPPORTED,
    Outcome.PASS,
)
"""Outcomes by how soon somebody should look at them."""

NOT_KEPT = frozenset(GRAVITY) - {Outcome.PASS, Outcome.FIXED, Outcome.UNSUPPORTED, Outcome.ABSTAIN, Outcome.UNSTABLE}
"""The clause did not hold, foreseen or not."""

_SLUG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,79}")
_REASONS = 3


@dataclass(frozen=True)
class Tally:
    """Tests by outcome, the gravest first."""

    counts: tuple[tuple[Outcome, int], ...]

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Tally:
        """What these came to."""
        found = Counter(verdict.outcome for verdict in verdicts)
        return cls(tuple((outcome, found[outcome]) for outcome in GRAVITY if found[outcome]))

    @property
    def total(self) -> int:
        """The denominator."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True)
class Cell:
    """A clause in a run; `verdicts` the gravest first, `number` its place among all cells that hold any."""

    run: int
    number: int
    tally: Tally
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Row:
    """A clause across the runs.

    Attributes:
        alone: the only framework that does not keep the clause, or "".
        held_by: the frameworks that keep it then.
    """

    number: int
    anchor: str
    name: str
    level: str
    requirement: str
    source: tuple[Piece, ...]
    history: tuple[tuple[Piece, ...], ...]
    cells: tuple[Cell, ...]
    alone: str
    held_by: tuple[str, ...]

    @property
    def outcomes(self) -> str:
        """The outcomes that occur in it, for the filter."""
        found = {outcome.value for cell in self.cells for outcome, _ in cell.tally.counts}
        return " ".join(sorted(found))


@dataclass(frozen=True)
class Family:
    """The clauses of a family."""

    number: int
    name: str
    tallies: tuple[Tally, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Alone:
    """A clause that one framework alone does not keep: in which runs, and why."""

    row: Row
    cells: tuple[Cell, ...]
    reasons: tuple[tuple[str, str], ...]


def families(records: Sequence[Record]) -> tuple[Family, ...]:
    """The matrix of these records."""
    texts: dict[str, ClauseText] = {}
    for record in records:
        for name, text in record.clauses.items():
            texts.setdefault(name, text)
    by_clause = [_by_clause(record) for record in records]
    found, rows, cells = [], 0, 0
    for number, family in enumerate(sorted({text.family for text in texts.values()})):
        members: list[Row] = []
        for name in sorted(name for name, text in texts.items() if text.family == family):
            verdicts = [found.get(name, []) for found in by_clause]
            row = _row(rows, cells, name, texts[name], verdicts, _only(records, verdicts))
            cells += sum(1 for cell in row.cells if cell.verdicts)
            rows += 1
            members.append(row)
        tallies = tuple(
            Tally.of([verdict for row in members for verdict in row.cells[run].verdicts]) for run in range(len(records))
        )
        found.append(Family(number, clean(family), tallies, tuple(members)))
    return tuple(found)


def alone(matrix: Sequence[Family]) -> tuple[Alone, ...]:
    """The clauses that exactly one framework does not keep while another one that supports them does."""
    found = []
    for row in sorted((row for family in matrix for row in family.rows if row.alone), key=lambda row: row.alone):
        cells = tuple(cell for cell in row.cells if _fails(cell.verdicts))
        failures = [verdict for cell in cells for verdict in cell.verdicts if verdict.outcome in NOT_KEPT]
        reasons = dict.fromkeys((clean(v.reason or v.message, VALUE), href(v.link)) for v in failures)
        found.append(Alone(row, cells, tuple(reasons)[:_REASONS]))
    return tuple(found)


def _by_clause(record: Record) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for verdict in record.verdicts:
        found.setdefault(verdict.clause, []).append(verdict)
    for verdicts in found.values():
        verdicts.sort(key=lambda verdict: (GRAVITY.index(verdict.outcome), verdict.test))
    return found


def _row(
    number: int,
    cells: int,
    name: str,
    text: ClauseText,
    verdicts: Sequence[Sequence[Verdict]],
    only: tuple[str, tuple[str, ...]],
) -> Row:
    found = []
    for run, here in enumerate(verdicts):
        found.append(Cell(run, cells, Tally.of(here), tuple(here)))
        cells += bool(here)
    return Row(
        number=number,
        anchor=f"clause-{name}" if _SLUG.fullmatch(name) else f"clause.{number}",
        name=clean(name),
        level=clean(text.level, 40),
        requirement=clean(text.requirement, VALUE),
        source=linked(text.source),
        history=tuple(linked(entry) for entry in text.history[:20]),
        cells=tuple(found),
        alone=only[0],
        held_by=only[1],
    )


def _fails(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.outcome in NOT_KEPT for verdict in verdicts)


def _only(records: Sequence[Record], verdicts: Sequence[Sequence[Verdict]]) -> tuple[str, tuple[str, ...]]:
    frameworks = judged(records)
    failing, holding = set(), set()
    for record, here in zip(records, verdicts, strict=True):
        framework = record.series.framework
        if framework in frameworks and _fails(here):
            failing.add(framework)
        elif framework in frameworks and any(verdict.outcome is Outcome.PASS for verdict in here):
            holding.add(framework)
    held_by = tuple(clean(framework, NAME) for framework in sorted(holding - failing))
    return (clean(failing.pop(), NAME), held_by) if len(failing) == 1 and held_by else ("", ())
