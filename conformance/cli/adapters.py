"""`conformance frameworks` lists adapters; `conformance new` creates one, or a training loop."""

from __future__ import annotations

import os
from pathlib import Path

import click

from conformance.cli.options import PATH
from conformance.cli.specifying import frameworks as listing
from frameworks.skeleton import import_path_of, write_adapter, write_loop
from results.record.files import one_line


class _ListsByDefault(click.Group):
    """Runs `list` unless the first word names a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault)
def frameworks() -> None:
    """List the adapters and what each declares.

    \b
    conformance frameworks                every adapter that is built in or installed
    conformance frameworks torch          one adapter, with the reasons for unsupported capabilities
    """


frameworks.add_command(listing, "list")


@frameworks.command("new")
@click.argument("name")
@click.argument("folder", type=PATH)
def new_named(name: str, folder: Path) -> None:
    """Create an adapter called NAME in the new FOLDER; the same as `conformance new adapter --name NAME FOLDER`."""
    _write_adapter(name, folder)


@click.group()
def new() -> None:
    """Create a training loop to judge, or an adapter of a framework.

    \b
    conformance new loop FOLDER
    conformance new adapter FOLDER
    """


@new.command()
@click.argument("folder", type=PATH)
def loop(folder: Path) -> None:
    """Create my_training.py in FOLDER: a correct PyTorch loop of three methods, to replace by your own."""
    try:
        path = write_loop(folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"judge it: cd {folder} && python -m conformance run {path.stem}:Loop --tests quick"))


@new.command()
@click.argument("folder", type=PATH)
@click.option("--name", metavar="NAME", help="Name of the adapter; by default that of the folder.")
def adapter(folder: Path, name: str | None) -> None:
    """Create an adapter in the new FOLDER: a package without capabilities, for which nearly every test ends as `not
    offered`. docs/adapters.md explains how to add capabilities.
    """
    _write_adapter(os.path.basename(os.path.realpath(folder)) if name is None else name, folder)


def _write_adapter(name: str, folder: Path) -> None:
    try:
        files = write_adapter(name, folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    for path in files:
        click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"run the suite: PYTHONPATH={folder} python -m conformance run {import_path_of(name)}"))
    click.echo(one_line(f"or install the adapter (pip install -e {folder}), then: python -m conformance run {name}"))
