"""`conformance table`, `slowest`, `validate` and `recover`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from conformance.cli.options import PATH
from results.record.encoding import without_collecting
from results.record.files import RecordError, one_line
from results.record.folders import Outlines, find, read
from results.record.journal import convert
from results.record.reading import load
from results.show import portability, times
from results.show import table as tables
from results.show.marks import title


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option(
    "--clauses", is_flag=True, help="Show one word for each clause: portable, differs, broken in X since V, ..."
)
@click.option("--times", "timed", is_flag=True, help="Also show seconds by family, and the slowest tests.")
@click.option("--strict", is_flag=True, help="Exit with 1 if an outcome needs action or a run was interrupted.")
@click.option("--width", type=click.IntRange(20, 1000), metavar="N", help="Width in columns (default: the terminal's).")
@without_collecting()
def table(paths: tuple[Path, ...], clauses: bool, timed: bool, strict: bool, width: int | None) -> int:
    """Show outcomes by clause family and framework, from records, journals or folders of them (by default the last
    runs).

    \b
    conformance table
    conformance table results/baselines --clauses
    """
    records = read(paths, convert=Outlines())
    console = Console(width=width)
    if clauses:
        for line in portability.listed(records):
            click.echo(line)
    else:
        tables.draw(records, console)
    if timed:
        times.draw(records, console)
    problems = [(record, tables.troubles(record)) for record in records] if strict else []
    for record, troubles in problems:
        if troubles:
            click.echo(f"{' '.join(title(record)[:3])}: {', '.join(troubles)}", err=True)
    return 1 if any(troubles for _, troubles in problems) else 0


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option(
    "--by", type=click.Choice(["test", "clause"]), default="test", show_default=True, help="List tests or clauses."
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=times.SLOWEST,
    show_default=True,
    help="Number of entries for each record.",
)
def slowest(paths: tuple[Path, ...], by: Literal["test", "clause"], count: int) -> int:
    """List the slowest tests or clauses of each record (by default of the last runs), in seconds."""
    for line in times.listed(read(paths, convert=Outlines()), by, count):
        click.echo(line)
    return 0


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
def validate(paths: tuple[Path, ...]) -> int:
    """Check records, journals or folders of them. Exit status: 0, all are valid; 2, one is not. Each that is not has a
    line with the reason.

    \b
    conformance validate results/records
    """
    status = 0
    for path in find(paths):
        try:
            record = load(path)
        except RecordError as error:
            click.echo(f"conformance: {error}", err=True)
            status = 2
        else:
            click.echo(one_line(f"{path}: a valid record, {record.status}, {len(record.verdicts)} verdicts"))
    return status


@click.command()
@click.argument("journal", type=PATH, metavar="JOURNAL")
def recover(journal: Path) -> int:
    """Convert JOURNAL (.jsonl), which a killed run leaves, to a record, and print the record's path.

    The next run of the same series does this automatically.
    """
    click.echo(one_line(str(convert(journal))))
    return 0
