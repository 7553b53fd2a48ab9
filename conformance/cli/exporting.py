"""`conformance export`: records in forms that other tools read."""

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
@click.option("--format", "style", type=click.Choice(list(_FORMATS)), required=True)
@click.option("--output", type=PATH, metavar="FILE", help="Write there instead of printing.")
def export(paths: tuple[Path, ...], style: str, output: Path | None) -> int:
    """Records, journals or folders of them as one document; the last runs if none is named.

    \b
    conformance export --format ctrf --output results/ctrf.json
    conformance export results/baselines --format markdown >> "$GITHUB_STEP_SUMMARY"

    ctrf is the Common Test Report Format (https://ctrf.io), checked by its published schema before it is written.
    Outcomes become statuses: pass is passed; unsupported and not offered are skipped; known and abstain are other;
    whatever somebody has to act on is failed. The outcome itself stands in rawStatus and among the tags.

    markdown has the counts, what needs action, and the known failures folded; at most 256 KiB, and says if it was cut.
    findings is a Markdown list of the known failures, by what they rest on.
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
