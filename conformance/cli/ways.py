"""`conformance ways`: the public calls that can replace an adapter's default ones."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from conformance.cli.options import put_entries
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in, known, path_of
from frameworks.ways import declared

WAYS_HEADER = ("way", "calls", "documented limits")


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
        path = path_of(name)
        if name not in built_in() and folder_of(path) is None:
            module = path.partition(":")[0]
            raise click.UsageError(f"no module {module} can be imported from here; want package.module:Class")
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
