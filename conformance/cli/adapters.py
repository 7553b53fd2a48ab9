"""`conformance frameworks`: list adapters, and create one."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.specifying import frameworks as listing
from frameworks.skeleton import import_path_of, write_adapter
from results.record.files import one_line


class _ListsByDefault(click.Group):
    """Runs `list` unless the first word names a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault)
def frameworks() -> None:
    """List the adapters and what each declares, or create a new adapter.

    \b
    conformance frameworks                every adapter that is built in or installed
    conformance frameworks torch          one adapter, with the reasons for unsupported capabilities
    conformance frameworks new mine FOLDER
    """


frameworks.add_command(listing, "list")


@frameworks.command()
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
def new(name: str, folder: Path) -> None:
    """Create an adapter called NAME in the new FOLDER: a package without capabilities, for which nearly every test ends
    as `not offered`. docs/adapters.md explains how to add capabilities.
    """
    try:
        files = write_adapter(name, folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    for path in files:
        click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"run the suite: PYTHONPATH={folder} python -m conformance run {import_path_of(name)}"))
    click.echo(one_line(f"or install the adapter (pip install -e {folder}), then: python -m conformance run {name}"))
