"""`conformance ways`: the public calls of a technique that an adapter can use instead of its default ones."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from conformance.sweep.known_names import check_place
from frameworks.registry import known
from frameworks.ways import declared

HEADER = ("way", "calls", "documented limits")


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
    for name in frameworks:
        try:
            check_place(name)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    for name in frameworks or sorted(known()):
        if lines := rows(name):
            table = Table(box=SIMPLE_HEAD, title=name)
            for heading in HEADER:
                table.add_column(heading, overflow="fold")
            table.columns[0].no_wrap = True
            for line in lines:
                table.add_row(*line)
            console.print(table)
        elif frameworks:
            click.echo(f"{name}: its adapter declares no ways")
    return 0


def rows(framework: str) -> list[tuple[str, str, str]]:
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
