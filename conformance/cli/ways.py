"""`conformance ways`: the public calls of a technique that an adapter can use instead of its default ones."""

from __future__ import annotations

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from conformance.pages.ways import HEADER, rows
from frameworks.registry import known


@click.command()
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...")
def ways(frameworks: tuple[str, ...]) -> int:
    """List the public calls of each technique that FRAMEWORK (by default every adapter) can use instead of its default
    ones.

    \b
    conformance ways torch
    conformance run torch --ways clip.two-calls    the suites with one of them
    conformance run torch --ways all               with all of them, in as few runs as can be
    """
    console = Console()
    for name in frameworks or sorted(known()):
        if lines := rows(name):
            table = Table(*HEADER, box=SIMPLE_HEAD, title=name)
            table.columns[0].no_wrap = True
            for line in lines:
                table.add_row(*line)
            console.print(table)
        elif frameworks:
            click.echo(f"{name}: its adapter declares no ways")
    return 0
