"""The matrix: clauses by family down, runs across, tests counted by outcome; clauses that only one framework fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.record.outcomes import Outcome
from results.record.reading import ClauseText, Record, TestVerdict
from results.report.runs import RunColumn, judged, packages, runs
from results.report.text import NAME, VALUE, TextPart, clean, href, linked
from results.show.clauses import FAILURE_OUTCOMES, Count, by_clause, inferred, outcome
from results.show.portability import Broken, Portability, Word, words

_SLUG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,79}")
_REASONS = 3


@dataclass(frozen=True)
class AcrossFrameworks:
    """The word of a clause across frameworks.

    Attributes:
        broken: frameworks that break the clause, as cleaned texts; the version in pieces between which a line may end,
            "since" before it where it is the first; mode and device of the runs that show it, or "".
        owners: whose the failures are, of frameworks that train by one library.
        choices: the indices of its filter choices.
    """

    kind: str
    broken: tuple[tuple[str, Sequence[str], str], ...]
    owners: tuple[str, ...]
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """A clause in a run.

    Attributes:
        number: its place among all cells that hold verdicts.
        anchor: its name in addresses.
        tests: how many have which outcome.
        verdicts: the gravest first.
    """

    run: int
    number: int
    anchor: str
    tests: Counter[Outcome]
    verdicts: tuple[TestVerdict, ...]

    @property
    def outcome(self) -> Outcome:
        """The clause's outcome; only where there are verdicts."""
        return outcome(self.verdicts)

    @property
    def unconfirmed(self) -> int:
        """The number of known failures that were observed only in another series."""
        return sum(map(inferred, self.verdicts))


@dataclass(frozen=True)
class ClauseRow:
    """A clause across the runs.

    Attributes:
        word: its word across frameworks, None if no run of the newest versions judges it.
        alone: the only framework that fails the clause while another one passes it, or "".
        passing: the frameworks that pass it and do not fail it.
    """

    number: int
    anchor: str
    name: str
    level: str
    requirement: str
    source: tuple[TextPart, ...]
    history: tuple[tuple[TextPart, ...], ...]
    cells: tuple[Cell, ...]
    word: AcrossFrameworks | None
    alone: str
    passing: tuple[str, ...]

    @property
    def split(self) -> bool:
        """Whether the clause is broken in the newest version of one framework and passes in another framework."""
        return self.word is not None and self.word.kind == Portability.BROKEN and bool(self.passing)

    @property
    def differs(self) -> bool:
        """Whether no framework breaks the clause, but some do not support it or observe another value."""
        return self.word is not None and self.word.kind == Portability.DIFFERS


@dataclass(frozen=True)
class Family:
    """The clauses of a family."""

    number: int
    name: str
    totals: tuple[Count, ...]
    rows: tuple[ClauseRow, ...]


@dataclass(frozen=True)
class SoleFailure:
    """A clause that only one framework fails, with the failing cells and the reasons."""

    row: ClauseRow
    cells: tuple[Cell, ...]
    reasons: tuple[tuple[str, str], ...]


def families(records: Sequence[Record]) -> tuple[Family, ...]:
    """The matrix of these records."""
    columns = runs(records)
    texts: dict[str, ClauseText] = {}
    for record in sorted(records, key=lambda each: each.started, reverse=True):
        for name, text in record.clauses.items():
            texts.setdefault(name, text)
    grouped = [by_clause(record) for record in records]
    said = words(records)
    listed = choices(said.values())
    result, rows, cells = [], 0, 0
    for number, family in enumerate(sorted({text.family for text in texts.values()})):
        members: list[ClauseRow] = []
        for name in sorted(name for name, text in texts.items() if text.family == family):
            verdicts = [here.get(name, []) for here in grouped]
            word = _across(said[name], listed) if name in said else None
            row = _row(rows, cells, name, texts[name], verdicts, _sides(records, verdicts), word, columns)
            cells += sum(1 for cell in row.cells if cell.verdicts)
            rows += 1
            members.append(row)
        totals = tuple(Count.of(row.cells[run].verdicts for row in members) for run in range(len(records)))
        result.append(Family(number, clean(family), totals, tuple(members)))
    return tuple(result)


def choices(said: Iterable[Word]) -> tuple[str, ...]:
    """The filter choices: every kind of word, and every framework in which a clause is broken."""
    listed = list(said)
    frameworks = sorted({_broken_in(each) for word in listed for each in word.broken})
    return (*(kind.value for kind in Portability if any(word.kind is kind for word in listed)), *frameworks)


def _broken_in(broken: Broken) -> str:
    return f"broken in {clean(broken.framework, NAME)}"


def _across(word: Word, listed: Sequence[str]) -> AcrossFrameworks:
    """A word as cleaned texts, where `listed` are the filter choices."""
    broken = []
    for each in word.broken:
        first, *rest = packages(clean(each.since or each.version, NAME))
        version = [f"since {first}" if each.since else first, *rest]
        broken.append((clean(each.framework, NAME), version, clean(", ".join(each.where))))
    chosen = dict.fromkeys((word.kind.value, *map(_broken_in, word.broken)))
    owners = tuple(clean(str(owner), NAME) for owner in word.owners)
    return AcrossFrameworks(word.kind.value, tuple(broken), owners, tuple(map(listed.index, chosen)))


def alone(matrix: Sequence[Family]) -> tuple[SoleFailure, ...]:
    """The clauses that exactly one framework fails while another one passes them."""
    result = []
    for row in sorted((row for family in matrix for row in family.rows if row.alone), key=lambda row: row.alone):
        cells = tuple(cell for cell in row.cells if _fails(cell.verdicts))
        failures = [verdict for cell in cells for verdict in cell.verdicts if verdict.outcome in FAILURE_OUTCOMES]
        reasons = dict.fromkeys((clean(v.reason or v.message, VALUE), href(v.link)) for v in failures)
        result.append(SoleFailure(row, cells, tuple(reasons)[:_REASONS]))
    return tuple(result)


def _row(
    number: int,
    cells: int,
    name: str,
    text: ClauseText,
    verdicts: Sequence[Sequence[TestVerdict]],
    sides: tuple[Sequence[str], Sequence[str]],
    word: AcrossFrameworks | None,
    columns: Sequence[RunColumn],
) -> ClauseRow:
    result, plain = [], _SLUG.fullmatch(name)
    failing, passing = sides
    for run, here in enumerate(verdicts):
        anchor = f"{name if plain else f'~{number}'}@{columns[run].slug}"
        result.append(Cell(run, cells, anchor, Counter(verdict.outcome for verdict in here), tuple(here)))
        cells += bool(here)
    return ClauseRow(
        number=number,
        anchor=f"clause-{name}" if plain else f"clause.{number}",
        name=clean(name),
        level=clean(text.level, 40),
        requirement=clean(text.requirement, VALUE),
        source=linked(text.source),
        history=tuple(linked(entry) for entry in text.history[:20]),
        cells=tuple(result),
        word=word,
        alone=clean(failing[0], NAME) if len(failing) == 1 and passing else "",
        passing=tuple(clean(framework, NAME) for framework in passing),
    )


def _fails(verdicts: Sequence[TestVerdict]) -> bool:
    return any(verdict.outcome in FAILURE_OUTCOMES for verdict in verdicts)


def _sides(records: Sequence[Record], verdicts: Sequence[Sequence[TestVerdict]]) -> tuple[list[str], list[str]]:
    """The frameworks that fail a clause in some run, and those that pass it and do not."""
    frameworks = judged(records)
    failing, passing = set(), set()
    for record, here in zip(records, verdicts, strict=True):
        framework = record.series.framework
        if framework in frameworks and _fails(here):
            failing.add(framework)
        elif framework in frameworks and any(verdict.outcome is Outcome.PASS for verdict in here):
            passing.add(framework)
    return sorted(failing), sorted(passing - failing)
