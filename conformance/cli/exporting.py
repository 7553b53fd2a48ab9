"""`conformance export`: records in forms that other tools read."""

from __future__ import annotations

from pathlib import Path

import click

from results.record.files import RecordError, replace
from results.record.folders import read
from results.show import ctrf, digest

PATH = click.Path(path_type=Path)


@click.command(short_help="Records for other tools: CTRF, or Markdown for a CI job.")
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option("--format", "style", type=click.Choice(["ctrf", "markdown"]), required=True)
@click.option("--output", type=PATH, metavar="FILE", help="Write there instead of printing.")
def export(paths: tuple[Path, ...], style: str, output: Path | None) -> int:
    """Records, journals or folders of them as one document; the last runs if none is named.

    \b
    conformance export --format ctrf --output results/ctrf.json
    conformance export results/baselines --format markdown >> "$GITHUB_STEP_SUMMARY"

    ctrf is the Common Test Report Format (https://ctrf.io), held against its published schema before it is written.
    Outcomes become statuses: pass is passed; unsupported is skipped; known and abstain are other; whatever somebody has
    to act on is failed. The outcome itself stands in rawStatus and among the tags.

    markdown has the counts, what needs action, and the known failures folded; at most 256 KiB, and says if it was cut.
    """
    records = read(paths)
    try:
        content = ctrf.dumps(records) if style == "ctrf" else digest.markdown(records).encode("utf-8", "replace")
    except ValueError as error:
        raise RecordError("the records", f"cannot be exported ({error})", "leave that record out") from None
    if output is None:
        click.echo(content, nl=False)
    else:
        replace(output, content)
    return 0
