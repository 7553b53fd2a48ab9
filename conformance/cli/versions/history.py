"""`conformance history`: what each version of a framework or a companion does, and where it changed."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.progress import watched
from results.history.changes import history as history_of
from results.history.documents import compact
from results.history.folders import gather
from results.history.lines import lines
from results.history.markdown import markdown
from results.record.files import one_line, replace

PATH = click.Path(path_type=Path)
PAGES = Path("results/pages")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="FOLDER...")
@click.option("--output", type=PATH, metavar="PATH", help="Folder of the pages; file of JSON or Markdown.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["html", "json", "markdown"]),
    default="html",
    show_default=True,
    help="Pages, compact data, or the change points.",
)
def history(folders: tuple[Path, ...], output: Path | None, style: str) -> int:
    """Show the outcome of each clause by version, with every change, from folders of records or of sweeps.

    \b
    conformance history results/baselines results/upgrades
    conformance history sweep --format json --output history.json

    A line has the versions of one package, in one mode, on one platform. Versions are compared by the tests that both
    judged; abstentions and unstable tests change nothing.
    """
    gathered = gather(folders, lambda found: watched(found, "reading records"))
    histories = [history_of(line) for line in lines(gathered)]
    if style == "html":
        try:
            from results.history.pages import write
        except ModuleNotFoundError as error:
            needed = f"{error.name} is missing: pip install --group report, or choose --format markdown"
            raise click.ClickException(needed) from None
        folder = output or PAGES
        size = write(histories, folder)
        changes = sum(len(one.points) for one in histories)
        click.echo(
            one_line(f"{folder / 'index.html'}: {len(histories)} lines, {changes} changes, {size / 2**20:.1f} MiB")
        )
        return 0
    text = {"json": compact, "markdown": markdown}[style](histories)
    if output is None:
        click.echo(text, nl=False)
    else:
        replace(output, text.encode("utf-8", "replace"))
    return 0
