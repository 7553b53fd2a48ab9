"""`conformance export`: records in formats of other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from results.record.files import RecordError, replace
from results.record.folders import read
from results.record.reading import Record
from results.show import ctrf, digest, findings

PATH = click.Path(path_type=Path)
_FORMATS: Mapping[str, Callable[[Sequence[Record]], bytes]] = {
    "ctrf": ctrf.dumps,
    "findings": lambda records: findings.markdown(records).encode("utf-8", "replace"),
    "markdown": lambda records: digest.markdown(records).encode("utf-8", "replace"),
}


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option("--format", "style", type=click.Choice(list(_FORMATS)), required=True, help="Output format.")
@click.option("--output", type=PATH, metavar="FILE", help="Write to FILE instead of printing.")
def export(paths: tuple[Path, ...], style: str, output: Path | None) -> int:
    """Convert records, journals or folders of them (by default the last runs) to one document.

    \b
    conformance export --format ctrf --output results/ctrf.json
    conformance export results/baselines --format markdown >> "$GITHUB_STEP_SUMMARY"

    ctrf is the Common Test Report Format (https://ctrf.io), validated against its published schema. Outcomes become
    statuses: pass is passed; unsupported and not offered are skipped; known and abstain are other; outcomes that need
    action are failed. rawStatus and the tags contain the outcome itself.

    markdown has the counts, the tests that need action, and the known failures folded; it is cut at 256 KiB, with a
    note. findings is a Markdown list of the known failures by finding.
    """
    records = read(paths)
    try:
        content = _FORMATS[style](records)
    except ValueError as error:
        raise RecordError("the records", f"cannot be exported ({error})", "leave that record out") from None
    if output is None:
        click.echo(content, nl=False)
    else:
        replace(output, content)
    return 0
