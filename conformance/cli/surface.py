"""`conformance surface` and `conformance ways`: the public callables of a framework's techniques.

The one counts the parameters that the suites use, the other lists the calls that can replace an adapter's default ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from conformance.cli.options import PATH, completing, put_entries
from conformance.surface import rendering
from conformance.surface.listing import listed
from conformance.surface.scope import scope_of, with_scope
from conformance.surface.usage import committed, load, to_bytes, with_uses
from conformance.sweep.known_names import check_place
from frameworks.registry import known
from frameworks.ways import declared

WAYS_HEADER = ("way", "calls", "documented limits")


@click.command()
@click.argument("framework", shell_complete=completing(with_scope))
@click.argument("recordings", nargs=-1, type=PATH, metavar="[RECORDING]...")
@click.option("--used", is_flag=True, help="List the classes of values of each used parameter.")
@click.option("--unused", is_flag=True, help="List unused parameters without a reason.")
@click.option("--against", type=PATH, metavar="LISTING", help="List what is new, removed or has another default.")
@click.option("--json", "as_json", is_flag=True, help="Print the listing with its uses as JSON.")
def surface(
    framework: str, recordings: tuple[Path, ...], used: bool, unused: bool, against: Path | None, as_json: bool
) -> int:
    """List the public callables in the technique namespaces of the installed FRAMEWORK, and count the parameters that
    the suites use.

    \b
    python -m pytest --framework=torch --surface=torch.json    record the calls of a run
    conformance surface torch torch.json --unused
    conformance surface torch --json > torch-2.13.json
    conformance surface torch --against torch-2.13.json        after an upgrade

    Without a RECORDING the committed one counts. A parameter is used if the suite itself passed a value other than the
    default. The file surface.toml of the adapter names the namespaces, and reasons for what is out of scope.
    """
    scope = scope_of(framework)
    before = None if against is None else load(against)
    stored = committed(framework)
    paths = recordings or ((stored,) if stored.is_file() else ())
    listing = with_uses(listed(scope), [load(path) for path in paths])
    if as_json:
        click.echo(to_bytes(listing), nl=False)
        return 0
    table = Table(
        *rendering.HEADER, box=SIMPLE_HEAD, title=" ".join(f"{name} {its}" for name, its in listing.versions.items())
    )
    table.columns[0].no_wrap = True
    for row in rendering.rows(listing, scope):
        table.add_row(*row)
    Console().print(table)
    if listing.absent:
        click.echo(f"not in these versions: {', '.join(listing.absent)}")
    for wanted, lines in ((used, rendering.used_lines(listing)), (unused, rendering.unused_lines(listing, scope))):
        for line in lines if wanted else ():
            click.echo(line)
    if before is not None:
        click.echo("new, not judged")
        for line in rendering.changes(before, listing, scope):
            click.echo(line)
    return 0


@click.command()
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...")
def ways(frameworks: tuple[str, ...]) -> int:
    """List the public calls of each technique that FRAMEWORK (by default every adapter) can use instead of its default
    ones.

    \b
    conformance ways torch
    conformance run torch --ways clip.two-calls    the suites with one of them
    conformance run torch --ways all               with all of them, in as few runs as can be

    Into a pipe: one line for each, with tabs between framework, way, calls and documented limits.
    """
    console = Console()
    for name in frameworks:
        try:
            check_place(name)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    for name in frameworks or sorted(known()):
        lines = ways_rows(name)
        if lines and not console.is_terminal:
            put_entries((name, *line) for line in lines)
        elif lines:
            table = Table(box=SIMPLE_HEAD, title=name)
            for heading in WAYS_HEADER:
                table.add_column(heading, overflow="fold")
            table.columns[0].no_wrap = True
            for line in lines:
                table.add_row(*line)
            console.print(table)
        elif frameworks:
            click.echo(f"{name}: its adapter declares no ways")
    return 0


def ways_rows(framework: str) -> list[tuple[str, str, str]]:
    """A row for each way of an adapter.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return [
        (str(way), "; ".join(_call(name, given) for name, given in way.calls.items()), way.limits)
        for way in declared(framework)
    ]


def _call(name: str, given: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else name
