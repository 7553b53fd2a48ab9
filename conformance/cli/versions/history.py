"""`conformance history`: what each version of a framework or a companion does, and where it changed."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from conformance.cli.options import FORMAT, OUTPUT, PATH, put, put_entries, watched
from results.history.changes import LineHistory, markdown, rows, summary
from results.history.changes import history as history_of
from results.history.documents import compact, is_history, load
from results.history.versions import OUTCOMES, gather, lines
from results.record.files import RecordError, one_line
from results.record.folders import listed

COMMITTED = Path(__file__).parents[3] / "results" / "sweeps"
HEADER = ("clause", "history", "what changed")


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH...]")
@click.option("--clause", metavar="ID", help="Show this clause, also where it did not change.")
@FORMAT
@OUTPUT
def history(paths: tuple[Path, ...], clause: str | None, style: str, output: Path | None) -> int:
    """Show what the clauses that changed do in each version.

    \b
    conformance history                                    the sweeps of this checkout
    conformance history results/baselines other-records    folders of records, of sweeps or of histories
    conformance history --clause scaling.automaton         one clause, whether or not it changed
    conformance history sweep --format json --output history.json

    A line has the versions of one package, in one mode, on one platform. Versions are compared by the tests that both
    judged; abstentions and unstable tests change nothing.
    """
    histories = read(paths or (COMMITTED,))
    if clause is not None:
        histories = [selection for one in histories if (selection := one.only(clause)) is not None]
        if not histories:
            raise click.BadParameter(f"no clause {clause!r} in these records", param_hint="--clause")
    if style == "json":
        put(compact(histories), output)
    elif style == "markdown" or output is not None:
        put(markdown(histories), output)
    elif not Console().is_terminal:
        put_entries((one.line.name, *row) for one in histories for row in rows(one, unchanged=clause is not None))
    else:
        _show(histories, unchanged=clause is not None)
    return 0


def read(paths: Sequence[Path]) -> list[LineHistory]:
    """Read the histories of files that this command wrote, and of records, folders of records and folders of sweeps.

    Raises:
        RecordError: a file cannot be read, or there is nothing in a folder.
    """
    files = [file for path in paths for file in _with_histories(path)]
    written = [path for path in files if is_history(path)]
    histories = [one for path in written for one in load(path)]
    if others := [path for path in files if path not in written]:
        gathered = gather(others, lambda records: watched(records, "reading records"))
        histories += map(history_of, lines(gathered))
    return histories


def _with_histories(path: Path) -> list[Path]:
    """The files of a folder that has written histories, its records too; else the path."""
    files = listed(path) if path.is_dir() and not (path / OUTCOMES).is_file() else []
    if path == COMMITTED and not files:
        raise RecordError(path, "has no history", "name folders of records")
    return files if any(map(is_history, files)) else [path]


def _show(histories: Sequence[LineHistory], *, unchanged: bool) -> None:
    for one in histories:
        click.echo(one_line(f"{one.line.name}: {summary(one)}", 2000))
        table = Table(*(Column(name, overflow="fold") for name in HEADER), box=SIMPLE_HEAD, pad_edge=False)
        for row in rows(one, unchanged=unchanged):
            table.add_row(*(Text(one_line(cell, 2000)) for cell in row))
        if table.row_count:
            Console().print(table)
