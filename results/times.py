"""Where the time of runs went: seconds by family of clauses, and the slowest tests of each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.files import one_line
from results.records import Record, Verdict
from results.table import title

SLOWEST = 10
_NAME_LIMIT = 160


def seconds(record: Record) -> dict[str, float]:
    """Seconds of the tests of each family of clauses."""
    found: dict[str, float] = {}
    for verdict in record.verdicts:
        family = record.clauses[verdict.clause].family
        found[family] = found.get(family, 0.0) + verdict.duration_s
    return found


def slowest(record: Record, count: int = SLOWEST) -> list[Verdict]:
    """The tests that took longest, longest first; of equals by their names."""
    return sorted(record.verdicts, key=lambda verdict: (-verdict.duration_s, verdict.test))[:count]


def draw(records: Sequence[Record], console: Console) -> None:
    """Prints both, the families down and the runs across."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("seconds in tests")
    spent = [seconds(record) for record in records]
    for record in records:
        table.add_column(Text("\n".join(title(record))), justify="right")
    families = sorted({family for found in spent for family in found})
    for family in families:
        cells = (_told(found[family]) if family in found else "–" for found in spent)
        table.add_row(Text(one_line(family, _NAME_LIMIT)), *cells, end_section=family == families[-1])
    table.add_row(Text("total", style="bold"), *(_told(sum(found.values())) for found in spent))
    console.print(table)
    for record in records:
        for line in _lines(record):
            console.print(Text(line), soft_wrap=True)


def _lines(record: Record) -> Iterator[str]:
    if record.verdicts:
        yield f"Slowest tests of {' '.join(title(record)[:3])}:"
    for verdict in slowest(record):
        yield f"{_told(verdict.duration_s):>9}  {one_line(verdict.test.rpartition('/')[2], _NAME_LIMIT)}"


def _told(spent: float) -> str:
    return f"{spent:.2f}" if spent < 1e6 else f"{spent:.1e}"
