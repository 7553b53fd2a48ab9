"""`conformance surface`: the public callables of a framework's techniques, and which parameters the suites use."""

from __future__ import annotations

from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from conformance.cli.options import PATH, completing
from conformance.surface.listing import listed
from conformance.surface.rendering import HEADER, changes, rows, unused_lines, used_lines
from conformance.surface.scope import scope_of, with_scope
from conformance.surface.usage import committed, load, to_bytes, with_uses


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
    table = Table(*HEADER, box=SIMPLE_HEAD, title=" ".join(f"{name} {its}" for name, its in listing.versions.items()))
    table.columns[0].no_wrap = True
    for row in rows(listing, scope):
        table.add_row(*row)
    Console().print(table)
    if listing.absent:
        click.echo(f"not in these versions: {', '.join(listing.absent)}")
    for wanted, lines in ((used, used_lines(listing)), (unused, unused_lines(listing, scope))):
        for line in lines if wanted else ():
            click.echo(line)
    if before is not None:
        click.echo("new, not judged")
        for line in changes(before, listing, scope):
            click.echo(line)
    return 0
