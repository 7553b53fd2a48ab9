"""`conformance report`: records as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.progress import watched
from results.compare.pairing import NONE, compare_sets
from results.record.files import one_line
from results.record.folders import Outlines, read

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option(
    "--output",
    type=PATH,
    default=Path("results/report.html"),
    show_default=True,
    metavar="FILE",
    help="HTML file to write.",
)
@click.option(
    "--against", type=PATH, metavar="PATH", help="Older records; the page gets a section of changes since then."
)
def report(paths: tuple[Path, ...], output: Path, against: Path | None) -> int:
    """Write one self-contained HTML page from records, journals or folders of them (by default the last runs).

    \b
    conformance report results/baselines
    conformance report --against results/baselines --output upgrade.html
    """
    try:
        from results.report import write
    except ModuleNotFoundError as error:
        needed = f"{error.name} is missing: pip install --group report, or tox -e report"
        raise click.ClickException(needed) from None
    if against is None:
        records = read(paths, lambda files: watched(files, "reading records"), Outlines(details=True))
        comparisons = NONE
    else:
        records = read(paths, lambda files: watched(files, "reading records"))
        comparisons = compare_sets(read([against]), records)
    write(records, output, comparisons)
    click.echo(one_line(f"{output}: {len(records)} records, {output.stat().st_size / 2**20:.1f} MiB"))
    return 0
