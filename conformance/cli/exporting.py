"""`conformance report` and `conformance export`: records as one HTML page, or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from conformance.cli.options import OUTPUT, PATH, put, watched
from results.compare.pairing import NONE, compare_sets
from results.record.files import one_line
from results.record.folders import Outlines, read
from results.record.reading import Record
from results.show import digest, findings

_FORMATS: Mapping[str, Callable[[Sequence[Record]], bytes]] = {
    "findings": lambda records: findings.markdown(records).encode("utf-8", "replace"),
    "markdown": lambda records: digest.markdown(records).encode("utf-8", "replace"),
}


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
        needed = f"{error.name} is missing: pip install jinja2, or tox -e report"
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


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option("--format", "style", type=click.Choice(list(_FORMATS)), required=True, help="Output format.")
@OUTPUT
def export(paths: tuple[Path, ...], style: str, output: Path | None) -> int:
    """Convert records, journals or folders of them (by default the last runs) to one Markdown document.

    \b
    conformance export results/baselines --format markdown >> "$GITHUB_STEP_SUMMARY"

    markdown has the counts, the tests that need action, and the known failures folded; it is cut at 256 KiB, with a
    note. findings is a Markdown list of the known failures by finding.
    """
    records = read(paths)
    put(_FORMATS[style](records), output)
    return 0
