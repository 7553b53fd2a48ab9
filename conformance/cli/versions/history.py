"""`conformance history`: what each version of a framework or a companion does, and where it changed."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.options import PATH, put, watched
from results.history.changes import history as history_of
from results.history.documents import compact, is_history, load
from results.history.folders import OUTCOMES, gather
from results.history.lines import lines
from results.history.statements import markdown
from results.record.files import RecordError, one_line
from results.record.folders import listed

PAGES = Path("results/pages")
COMMITTED = Path(__file__).parents[3] / "results" / "sweeps"


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH...]")
@click.option("--output", type=PATH, metavar="PATH", help="Folder of the pages; file of JSON or Markdown.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["html", "json", "markdown"]),
    default="html",
    show_default=True,
    help="Pages, compact data, or the change points.",
)
def history(paths: tuple[Path, ...], output: Path | None, style: str) -> int:
    """Show the outcome of each clause by version, with every change.

    \b
    conformance history                                    the sweeps of this checkout
    conformance history results/baselines other-records    folders of records, of sweeps or of histories
    conformance history sweep --format json --output history.json
    conformance history history.json                       what was written so

    A line has the versions of one package, in one mode, on one platform. Versions are compared by the tests that both
    judged; abstentions and unstable tests change nothing.
    """
    paths = paths or tuple(sorted(COMMITTED.glob("*.json")))
    if not paths:
        raise RecordError(COMMITTED, "has no history", "name folders of records")
    paths = tuple(file for path in paths for file in _with_histories(path))
    files = [path for path in paths if is_history(path)]
    histories = [one for path in files for one in load(path)]
    if folders := [path for path in paths if path not in files]:
        gathered = gather(folders, lambda files: watched(files, "reading records"))
        histories += map(history_of, lines(gathered))
    if style == "html":
        try:
            from results.history.pages import write
        except ModuleNotFoundError as error:
            needed = f"{error.name} is missing: pip install jinja2, or choose --format markdown"
            raise click.ClickException(needed) from None
        folder = output or PAGES
        size = write(histories, folder)
        changes = sum(len(one.points) for one in histories)
        click.echo(
            one_line(f"{folder / 'index.html'}: {len(histories)} lines, {changes} changes, {size / 2**20:.1f} MiB")
        )
        return 0
    put({"json": compact, "markdown": markdown}[style](histories), output)
    return 0


def _with_histories(path: Path) -> list[Path]:
    """The files of a folder that has files of histories, records too; of a sweep's folder, or a file, the path."""
    files = listed(path) if path.is_dir() and not (path / OUTCOMES).is_file() else []
    return files if any(map(is_history, files)) else [path]
