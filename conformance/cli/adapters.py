"""`conformance frameworks`: the adapters that are there, and a new one."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.specifying import frameworks as listing
from frameworks.skeleton import import_path_of, write_adapter
from results.record.files import one_line


class _ListsByDefault(click.Group):
    """Words that name no command of the group are those of `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault)
def frameworks() -> None:
    """Which adapters are there, and what each declares; or a new one.

    \b
    conformance frameworks                every adapter that is built in or installed
    conformance frameworks torch          with the reasons for what it refuses
    conformance frameworks new mine FOLDER
    """


frameworks.add_command(listing, "list")


@frameworks.command()
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
def new(name: str, folder: Path) -> None:
    """Writes an adapter called NAME into the new FOLDER: a package that offers nothing yet, so that nearly
    every test of the suites ends as `not offered`. docs/adapters.md says how it grows.
    """
    try:
        files = write_adapter(name, folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    for path in files:
        click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"judge it with: PYTHONPATH={folder} python -m conformance run {import_path_of(name)}"))
    click.echo(one_line(f"or install it, pip install -e {folder}, and: python -m conformance run {name}"))
