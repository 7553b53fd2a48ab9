"""Summaries of records: a table for a terminal, a digest in Markdown, and the time spent in tests.

In both tables families of clauses go down and frameworks across; clauses are counted first, tests second, and
denominators are shown.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import takewhile
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.record.files import one_line
from results.record.model import REFUSED, Consequence, FindingKind, Outcome
from results.record.reading import Record, TestVerdict
from results.show.clauses import (
    NAME_LIMIT,
    Count,
    by_consequence,
    code,
    cut,
    describe_unconfirmed,
    findings,
    html,
    list_by_class,
    tally,
    title,
    total,
    words,
)

CAPTION = (
    "Each clause counts once, by the gravest outcome of its tests: unsupported or not offered only if every test was. "
    "In parentheses: clauses and tests in all. Below the total: tests by outcome."
)
CLASSES = "Below the tests: findings (causes of known failures) by class and consequence."
_UNBOUNDED = 10_000
_NARROWEST = 3
"""Narrowest column of a table: a character and a space."""


def troubles(record: Record) -> tuple[str, ...]:
    """Return why a strict reader rejects the record: bad outcomes, an incomplete run, no verdict."""
    counts = Counter(verdict.outcome for verdict in record.verdicts)
    result = [f"{counts[outcome]} {outcome}" for outcome in Outcome if outcome.bad and counts[outcome]]
    if record.status == "interrupted" or (record.status == "partial" and not record.selection):
        result.append(record.status)
    if not record.verdicts:
        result.append("no verdict")
    return tuple(result)


@dataclass(frozen=True)
class _Column:
    """The content of a record's column."""

    record: Record
    families: Mapping[str, Count]
    total: Count
    known: Mapping[FindingKind, Counter[Consequence]]

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls(record, tally(record), total(record), by_consequence(record))


def _table(columns: Sequence[_Column], cell_width: int) -> Table:
    """The table of these records; a cell's outcomes go on as many lines as keep it within `cell_width` columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("clauses", no_wrap=True)
    for column in columns:
        table.add_column(_heading(column.record, cell_width), no_wrap=True)
    families = sorted({family for column in columns for family in column.families})
    for family in families:
        cells = [_format_count(column.families.get(family), cell_width) for column in columns]
        has_rule = family == families[-1] or any("\n" in cell.plain for cell in cells)
        table.add_row(_name(family), *cells, end_section=has_rule)
    kinds = [kind for kind in FindingKind if any(kind in column.known for column in columns)]
    table.add_row(Text("total", style="bold"), *(_format_count(column.total, cell_width) for column in columns))
    tests = [_cell(column.total.tests, column.total.of_what[1:], cell_width) for column in columns]
    table.add_row(Text("tests"), *tests, end_section=bool(kinds))
    for kind in kinds:
        classes = [column.known.get(kind, Counter()) for column in columns]
        table.add_row(Text(kind), *(_cell(counts, (str(counts.total()),), cell_width) for counts in classes))
    return table


def layout(records: Sequence[Record], width: int) -> list[Table]:
    """Return as few tables as possible that show the records within `width` columns."""
    columns = list(map(_Column.of, records))
    names = max([len("clauses"), *(len(_name(family)) for column in columns for family in column.families)])
    if sum(min(map(len, title(record))) + 1 for record in records) <= width:
        whole = _table(columns, _UNBOUNDED)
        if _width(whole) <= width:
            return [whole]
    for across in range(min(len(columns), max(1, (width - names - 2) // _NARROWEST)), 0, -1):
        cell_width = (width - names - 2) // across - 2
        candidates = (_table(columns[at : at + across], cell_width) for at in range(0, len(columns), across))
        tables = list(takewhile(lambda table: _width(table) <= width, candidates))
        if len(tables) * across >= len(columns):
            return tables
    return [_table([column], 1) for column in columns]


def notes(records: Sequence[Record]) -> list[str]:
    """The notes of the records, one line each."""
    return [
        f"{' '.join(title(record)[:3])}: {one_line(note)}"
        for record in records
        for note in (*describe_unconfirmed(record), *record.notes)
    ]


def plain(records: Sequence[Record], width: int = 80) -> str:
    """Return the summary as text without colour."""
    console = Console(file=StringIO(), width=width, color_system=None)
    draw(records, console)
    file = console.file
    assert isinstance(file, StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def draw(records: Sequence[Record], console: Console) -> None:
    """Print the summary in the width of the console."""
    for table in layout(records, console.width):
        console.print(table)
    console.print(Text(CAPTION, style="dim"))
    if any(map(by_consequence, records)):
        console.print(Text(CLASSES, style="dim"))
    for note in notes(records):
        console.print(Text(note))


def _name(family: str) -> Text:
    return Text(one_line(family, NAME_LIMIT))


def _heading(record: Record, cell_width: int) -> Text:
    framework, *rest = title(record)
    lines = [framework, *rest]
    if rest and len(f"{framework} {rest[0]}") <= cell_width:
        lines = [f"{framework} {rest[0]}", *rest[1:]]
    heading = Text("\n".join(lines))
    if record.status != "complete" and lines[-1].endswith(record.status):
        heading.stylize("bold red", len(heading) - len(record.status))
    return heading


def _format_count(count: Count | None, cell_width: int) -> Text:
    """Clauses by their outcome, and how many clauses and tests there were."""
    return _cell(count.clauses, count.of_what, cell_width) if count else _cell({}, (), cell_width)


def _cell(counts: Mapping[Outcome, int] | Mapping[Consequence, int], of: Sequence[str], cell_width: int) -> Text:
    """Counts in the order of their kind, then the denominators, wrapped to `cell_width`."""
    named = sorted(((key, number) for key, number in counts.items() if number), key=lambda pair: _place(pair[0]))
    parts = [Text(f"{number} {key.value}", style=_style(key)) for key, number in named]
    if not parts:
        return Text("–", style="dim")
    whole = f"({', '.join(of)})"
    pieces = [whole] if len(whole) <= cell_width else whole.replace(", ", ",\n").split("\n")
    sums = [Text(piece, style="bold") for piece in pieces]
    separators = [*(" · " for _ in parts[1:]), "  ", *(" " for _ in sums[1:])]
    cell = parts[0]
    used = len(cell)
    for part, separator in zip([*parts[1:], *sums], separators, strict=True):
        fits = used + len(separator) + len(part) <= cell_width
        cell = Text.assemble(cell, separator if fits else "\n", part)
        used = used + len(separator) + len(part) if fits else len(part)
    return cell


def _place(key: Outcome | Consequence) -> int:
    return list(type(key)).index(key)


def _style(outcome: Outcome | Consequence) -> str:
    if isinstance(outcome, Consequence):
        return "yellow"
    if outcome.bad:
        return "bold red"
    return "dim" if outcome in REFUSED else "green" if outcome is Outcome.PASS else "yellow"


def _width(table: Table) -> int:
    return Console(file=StringIO(), width=_UNBOUNDED).measure(table).maximum


def digest(records: Sequence[Record]) -> str:
    """Records in brief, as Markdown for the summary of a CI job, which says so if it had to be cut to `clauses.LIMIT`.

    Text of the records only shows itself.
    """
    return cut(_digest_lines(records))


def _digest_lines(records: Sequence[Record]) -> Iterator[str]:
    bad = [(record, verdict) for record in records for verdict in record.verdicts if verdict.outcome.bad]
    yield f"## Conformance: {_digest_headline(records, bad)}"
    yield ""
    yield from _digest_table(records)
    yield ""
    yield CAPTION
    yield ""
    for note in notes(records):
        yield f"- {words(note)}"
    if bad:
        yield ""
        yield f"### Needs action: {len({verdict.clause for _, verdict in bad})} clauses, {len(bad)} tests"
        yield ""
        yield from (_action(record, verdict) for record, verdict in bad)
        yield ""
    yield from _list_known(records)


def _digest_headline(records: Sequence[Record], bad: Sequence[tuple[Record, TestVerdict]]) -> str:
    clauses = {verdict.clause for record in records for verdict in record.verdicts}
    tests = sum(len(record.verdicts) for record in records)
    if bad:
        concerned = {verdict.clause for _, verdict in bad}
        return f"{len(concerned)} of {len(clauses)} clauses need action ({len(bad)} of {tests} tests)"
    unfinished = sum(1 for record in records if troubles(record))
    if unfinished:
        return f"{unfinished} of {len(records)} runs did not finish"
    return f"no action needed in {len(clauses)} clauses ({tests} tests)"


def _digest_table(records: Sequence[Record]) -> Iterator[str]:
    tallies = [tally(record) for record in records]
    totals = [total(record) for record in records]
    yield f"| clauses | {' | '.join(words(' '.join(title(record))) for record in records)} |"
    yield "|---" * (1 + len(records)) + "|"
    for family in sorted({family for counts in tallies for family in counts}):
        yield f"| {words(family, 40)} | {' | '.join(_digest_count(counts.get(family)) for counts in tallies)} |"
    yield f"| **total** | {' | '.join(map(_digest_count, totals))} |"
    yield f"| tests | {' | '.join(_digest_cell(count.tests, count.of_what[1:]) for count in totals)} |"


def _digest_count(count: Count | None) -> str:
    return _digest_cell(count.clauses, count.of_what) if count else "–"


def _digest_cell(counts: Mapping[Outcome, int], of: Sequence[str]) -> str:
    parts = (
        f"**{counts[outcome]} {outcome}**" if outcome.bad else f"{counts[outcome]} {outcome}"
        for outcome in Outcome
        if counts.get(outcome)
    )
    return f"{' · '.join(parts)} ({', '.join(of)})" if counts else "–"


def _action(record: Record, verdict: TestVerdict) -> str:
    text = words(verdict.message or verdict.reason) or "no message"
    repeat = f"<br>{code(verdict.repro, 500)}" if verdict.repro else ""
    where = words(" ".join(title(record)))
    return f"- **{verdict.outcome}** {code(verdict.test, 200)} ({where}): {text}{repeat}"


def _list_known(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        result = findings(record)
        if result:
            tests = sum(1 for verdict in record.verdicts if verdict.outcome is Outcome.KNOWN)
            heading = html(" ".join(title(record)))
            yield f"<details><summary>{heading}: {tests} known failures, findings: {len(result)}</summary>"
            yield ""
            yield from list_by_class(result)
            yield ""
            yield "</details>"
            yield ""


SLOWEST = 10
_LONGEST_NAME = 160


def seconds(record: Record) -> dict[str, float]:
    """Seconds of the tests of each family of clauses."""
    return _sum_durations(record, lambda verdict: record.clauses[verdict.clause].family)


def seconds_by_clause(record: Record) -> dict[str, float]:
    """Seconds of the tests of each clause."""
    return _sum_durations(record, lambda verdict: verdict.clause)


def _sum_durations(record: Record, name: Callable[[TestVerdict], str]) -> dict[str, float]:
    result: dict[str, float] = defaultdict(float)
    for verdict in record.verdicts:
        result[name(verdict)] += verdict.duration_s
    return result


def slowest(record: Record, count: int = SLOWEST) -> list[TestVerdict]:
    """Return the slowest tests, the slowest first; tests of equal time by name."""
    return sorted(record.verdicts, key=lambda verdict: (-verdict.duration_s, verdict.test))[:count]


def draw_times(records: Sequence[Record], console: Console) -> None:
    """Print a table of seconds by family (rows) and run (columns), and the slowest tests."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("seconds in tests")
    spent = [seconds(record) for record in records]
    for record in records:
        table.add_column(Text("\n".join(title(record))), justify="right")
    families = sorted({family for result in spent for family in result})
    for family in families:
        cells = (_format_seconds(result[family]) if family in result else "–" for result in spent)
        table.add_row(Text(one_line(family, _LONGEST_NAME)), *cells, end_section=family == families[-1])
    table.add_row(Text("total", style="bold"), *(_format_seconds(sum(result.values())) for result in spent))
    console.print(table)
    for line in list_slowest(records):
        console.print(Text(line), soft_wrap=True)


def list_slowest(records: Sequence[Record]) -> Iterator[str]:
    """List the slowest tests of each record, one a line under the record's name."""
    for record in records:
        if record.verdicts:
            yield f"Slowest tests of {' '.join(title(record)[:3])}:"
        for verdict in slowest(record):
            yield f"{_format_seconds(verdict.duration_s):>9}  {one_line(verdict.test, _LONGEST_NAME)}"


def list_times(records: Sequence[Record], of: Callable[[Record], dict[str, float]], most: int | None = None) -> str:
    """Return a table of seconds by key of `of` (rows) and run (columns), with all rows or the `most` slowest."""
    spent = [of(record) for record in records]
    sums = {name: sum(result.get(name, 0.0) for result in spent) for result in spent for name in result}
    names = sorted(sums, key=lambda name: (-sums[name], name))[:most]
    headings = [" ".join((record.series.framework, record.series.mode)) for record in records]
    lines = [f"| seconds | {' | '.join(headings)} |", f"|---|{'--:|' * len(records)}"]
    for name in names:
        cells = (_format_seconds(result[name]) if name in result else "–" for result in spent)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(f"| all tests | {' | '.join(_format_seconds(sum(result.values())) for result in spent)} |")
    lines.append(f"| the whole run | {' | '.join(_format_seconds(record.duration_s) for record in records)} |")
    return "\n".join(lines)


def _format_seconds(spent: float) -> str:
    return f"{spent:.2f}" if spent < 1e6 else f"{spent:.1e}"
