"""Helpers of several commands: options and their types, progress bars, and output to files, terminals and pipes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click

from frameworks.registry import find_adapters
from results.record.files import one_line, replace

T = TypeVar("T")
PATH = click.Path(path_type=Path)

_LONGEST = 10_000
"""Largest number of characters of a part of an entry in a pipe."""


FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(["table", "markdown", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
OUTPUT = click.option("--output", type=PATH, metavar="FILE", help="Write to FILE instead of printing.")


def completing(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion that gives the names with the argument as prefix."""
    return lambda _context, _parameter, incomplete: [name for name in names() if name.startswith(incomplete)]


names = completing(lambda: sorted(find_adapters()))
"""Completes the name of an adapter."""


def put(content: str | bytes, output: Path | None) -> None:
    """Write a document to a file, or print it."""
    if output is None:
        click.echo(content, nl=False)
    else:
        replace(output, content if isinstance(content, bytes) else content.encode("utf-8", "replace"))


def put_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in a terminal; into a pipe, print one line for each row, as `put_entries` does."""
    from rich.box import SIMPLE_HEAD  # takes a tenth of a second
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        return put_entries(rows)
    table = Table(*(Column(name, overflow="fold") for name in header), box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(one_line(cell, 2000)) for cell in row))
    return console.print(table)


def put_entries(entries: Iterable[Sequence[str]]) -> None:
    """Print one line for each entry, its parts separated by tabs; a pipe gets this instead of a table."""
    for entry in entries:
        click.echo("\t".join(one_line(part, _LONGEST) for part in entry))


def show_progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield the items; in a terminal, show a progress bar on standard error that disappears at the end."""
    from rich.console import Console  # takes a tenth of a second
    from rich.progress import track

    console = Console(stderr=True)
    hidden = not console.is_terminal or len(items) < 2
    return iter(track(items, label, console=console, transient=True, disable=hidden))
