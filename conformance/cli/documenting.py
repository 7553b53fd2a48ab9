"""`conformance docs`: the documentation as a site, or one page of it as Markdown."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="The documentation as a site that works offline, or one page of it.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="site", metavar="[FOLDER]")
@click.option("--page", metavar="NAME", help="Print this page as Markdown instead, such as upgrades or clauses.")
def docs(folder: Path, page: str | None) -> None:
    """Builds the documentation: the pages of docs with their generated tables, and the lists of all clauses and
    faults. The site needs no network and no server: open FOLDER/index.html. MkDocs builds it (`tox -e docs`); --page
    needs nothing but the suite.

    \b
    conformance docs
    conformance docs --page upgrades
    """
    from conformance.pages import generate, site

    try:
        if page is None:
            site.build(folder)
            click.echo(f"{folder / 'index.html'} is made")
        else:
            click.echo(site.text(page))
    except generate.PageError as error:
        raise click.ClickException(str(error)) from None
