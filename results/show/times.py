"""Time spent in tests: seconds by family and by clause, and the slowest tests of each run."""

from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.record.files import one_line
from results.record.reading import Record, TestVerdict
from results.show.clauses import title

SLOWEST = 10
_NAME_LIMIT = 160


def seconds(record: Record) -> dict[str, float]:
    """Seconds of the tests of each family of clauses."""
    return _sum_durations(record, lambda verdict: record.clauses[verdict.clause].family)


def by_clause(record: Record) -> dict[str, float]:
    """Seconds of the tests of each clause."""
    return _sum_durations(record, lambda verdict: verdict.clause)


def _sum_durations(record: Record, name: Callable[[TestVerdict], str]) -> dict[str, float]:
    result: dict[str, float] = {}
    for verdict in record.verdicts:
        result[name(verdict)] = result.get(name(verdict), 0.0) + verdict.duration_s
    return result


def slowest(record: Record, count: int = SLOWEST) -> list[TestVerdict]:
    """The tests that took longest, longest first; of equals by their names."""
    return sorted(record.verdicts, key=lambda verdict: (-verdict.duration_s, verdict.test))[:count]


def draw(records: Sequence[Record], console: Console) -> None:
    """Prints both, the families down and the runs across."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("seconds in tests")
    spent = [seconds(record) for record in records]
    for record in records:
        table.add_column(Text("\n".join(title(record))), justify="right")
    families = sorted({family for result in spent for family in result})
    for family in families:
        cells = (_seconds(result[family]) if family in result else "–" for result in spent)
        table.add_row(Text(one_line(family, _NAME_LIMIT)), *cells, end_section=family == families[-1])
    table.add_row(Text("total", style="bold"), *(_seconds(sum(result.values())) for result in spent))
    console.print(table)
    for line in list_slowest(records):
        console.print(Text(line), soft_wrap=True)


def list_slowest(records: Sequence[Record]) -> Iterator[str]:
    """List the slowest tests of each record, one a line under the record's name."""
    for record in records:
        if record.verdicts:
            yield f"Slowest tests of {' '.join(title(record)[:3])}:"
        for verdict in slowest(record):
            yield f"{_seconds(verdict.duration_s):>9}  {one_line(verdict.test, _NAME_LIMIT)}"


def markdown(records: Sequence[Record], of: Callable[[Record], dict[str, float]], most: int | None = None) -> str:
    """A table of seconds, what `of` sums them by down and the runs across; all, or the `most` that took longest."""
    spent = [of(record) for record in records]
    sums: dict[str, float] = {}
    for result in spent:
        for name, value in result.items():
            sums[name] = sums.get(name, 0.0) + value
    names = sorted(sums, key=lambda name: (-sums[name], name))[:most]
    headings = [" ".join((record.series.framework, record.series.mode)) for record in records]
    lines = [f"| seconds | {' | '.join(headings)} |", f"|---|{'--:|' * len(records)}"]
    for name in names:
        lines.append(
            f"| {name} | {' | '.join(_seconds(result[name]) if name in result else '–' for result in spent)} |"
        )
    lines.append(f"| all tests | {' | '.join(_seconds(sum(result.values())) for result in spent)} |")
    lines.append(f"| the whole run | {' | '.join(_seconds(record.duration_s) for record in records)} |")
    return "\n".join(lines)


def _seconds(spent: float) -> str:
    return f"{spent:.2f}" if spent < 1e6 else f"{spent:.1e}"
