"""`conformance compare` and `conformance baseline`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from conformance.cli.options import FORMAT, OUTPUT, PATH, put
from conformance.runner import baselines
from results.compare.pairing import FailOn, compare_files, compare_sets
from results.record.files import one_line
from results.record.folders import find
from results.show.differences import draw, markdown, to_json, to_text


@click.command()
@click.argument("old", type=PATH, metavar="OLD")
@click.argument("new", type=PATH, metavar="NEW")
@FORMAT
@OUTPUT
@click.option("--partial", is_flag=True, help="Ignore series that only OLD has.")
@click.option(
    "--fail-on",
    type=click.Choice(["worse", "drift", "never"]),
    default="worse",
    show_default=True,
    help="Exit with 1 on a regression, on a regression or drifted numbers, or never.",
)
def compare(old: Path, new: Path, style: str, output: Path | None, partial: bool, fail_on: FailOn) -> int:
    """Show what changed from OLD to NEW: records, journals, or folders of them, compared series by series.

    \b
    conformance compare results/baselines results/records
    conformance compare old.json new.json --format markdown >> "$GITHUB_STEP_SUMMARY"

    Differences of the suite itself come first, then those of the environments. A failure counts whether or not an
    expectation names it. A changed observation counts as worse, because a new default or format can surprise users. In
    passing tests, numbers are identical, rounding or drift: an error that at least tripled and exceeds half of its
    bound, or a loss that moved by more than its bound. Counted costs are compared; costs that vary, such as times, are
    not. Tests are matched by clause, name and the clause's revision; tests that cannot be compared are listed with the
    reason. A suite that demands less (a lower level, fewer checks, a wider bound, a missing curve) is worse.

    Exit status: 0, no regression; 1, a regression, or drift with --fail-on drift; 2, a record cannot be read, or fewer
    than half of OLD's tests can be compared.
    """
    comparisons = compare_files(find([old]), find([new]), partial)
    if style == "table" and output is None:
        draw(comparisons, Console())
    else:
        put({"table": to_text, "markdown": markdown, "json": to_json}[style](comparisons), output)
    return comparisons.exit_status(fail_on)


@click.group()
def baseline() -> None:
    """The committed records that later runs are compared with."""


@baseline.command(short_help="Make a record the baseline of its series.")
@click.argument("record", type=PATH, metavar="RECORD")
@click.option("--reason", required=True, metavar="TEXT", help="Why the new behaviour is acceptable.")
def accept(record: Path, reason: str) -> int:
    """Replace the baseline of RECORD's series, show what changes, and store the reason in the record's notes.

    \b
    conformance baseline accept results/records/torch-2.14.0-cpu-eager.json --reason "first run of 2.14"
    """
    if not reason.strip():
        raise click.BadParameter("is empty", param_hint="--reason")
    new = baselines.acceptable(record)
    old = baselines.former(new)
    if old is not None:
        draw(compare_sets([old[1]], [new]), Console())
    path = baselines.accept(record, " ".join(reason.split()))
    instead = f", instead of {old[0].name}" if old is not None and old[0] != path else ""
    click.echo(one_line(f"{path.name} is the baseline of its series{instead}"))
    return 0
