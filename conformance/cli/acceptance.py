"""`conformance accept`: a record becomes the baseline of its series, or its failures become known ones."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console

from conformance.cli.options import PATH
from conformance.known_failures.confirm import ConfirmError, summary_lines
from conformance.known_failures.reading import FILE, read_known
from conformance.known_failures.update import Cause, ExpectationUpdate
from conformance.known_failures.update import update as updated
from conformance.runner import baselines
from conformance.spec.findings import NO_LINK
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in, known, path_of
from results.compare.pairing import compare_sets
from results.record.files import RecordError, one_line, replace
from results.record.folders import INSTALLED, SHIPPED
from results.record.reading import load
from results.record.texts import Consequence, FindingKind, FindingText
from results.show import differences

_MAX_LISTED = 20


@click.command()
@click.argument("records", type=PATH, nargs=-1, required=True, metavar="RECORD...")
@click.option("--reason", metavar="TEXT", help="Make RECORD the baseline of its series, for this reason.")
@click.option("--known", "known_failures", is_flag=True, help="Update the adapter's known failures.")
@click.option("--framework", metavar="NAME", help="Adapter of the records, if it is not registered.")
@click.option("--finding", metavar="ID", help="Finding to which unexpected failures are added.")
@click.option("--clause", "clauses", multiple=True, metavar="ID", help="Only this clause's failures (repeatable).")
@click.option(
    "--text", nargs=3, metavar="CLASS CONSEQUENCE REASON", help="Text of a new finding; its link is added by hand."
)
@click.option("--dry-run", is_flag=True, help="Print the changes of known failures without writing them.")
def accept(
    records: tuple[Path, ...],
    reason: str | None,
    known_failures: bool,
    framework: str | None,
    finding: str | None,
    clauses: tuple[str, ...],
    text: tuple[str, str, str] | None,
    dry_run: bool,
) -> int:
    """Accept what RECORD shows: with --reason as the baseline that later runs are compared with, with --known as the
    known failures of its adapter.

    \b
    conformance accept results/records/torch-2.16.0+cpu-cpu-eager.json --reason "first run of 2.16"
    conformance accept results/records/torch-2.16.0+cpu-cpu-eager.json --known
    conformance accept RECORD --known --framework package.module:Class
    conformance accept RECORD --known --finding stale-weight-cast --clause autocast.cast-is-fresh
    conformance accept RECORD --known --finding new-one --text documented error "what goes wrong"

    --known takes complete runs of one version, one for each mode, and edits expectations.toml; comments and layout
    stay. The record's version, device and mode become a judged series. Each entry is changed to apply exactly where the
    record shows its failure. An entry that would apply in no judged series is removed, and so is a finding without
    entries. On a new device or in a new mode, entries of the nearest series also apply if they fail there. With
    --finding, unexpected failures become entries of it, for this version, device and mode and for these cases only.

    Exit status: 0, accepted; 1, the listed failures still need a finding; 2, nothing is changed, with the reason in one
    line, such as a record that is incomplete, of another seed, or of older tests.
    """
    for_known = framework is not None or finding is not None or clauses or text is not None or dry_run
    if (reason is None) is not known_failures or (for_known and not known_failures):
        raise click.UsageError("want --reason TEXT, or --known with its options")
    if reason is not None:
        return _accept_baselines(records, reason)
    if finding is None and (text is not None or clauses):
        raise click.UsageError("--clause and --text need --finding")
    cause = None if finding is None else Cause(finding, None if text is None else _finding_text(*text), clauses)
    return _accept_known_failures(records, framework, cause, dry_run)


def _accept_baselines(paths: Sequence[Path], reason: str) -> int:
    if not reason.strip():
        raise click.BadParameter("is empty", param_hint="--reason")
    for record in paths:
        new = baselines.acceptable(record)
        old = baselines.former(new)
        if old is not None:
            differences.draw(compare_sets([old[1]], [new]), Console())
        path = baselines.accept(record, " ".join(reason.split()))
        instead = f", instead of {old[0].name}" if old is not None and old[0] != path else ""
        click.echo(one_line(f"{path.name} is the baseline of its series{instead}"))
    return 0


def _finding_text(kind: str, consequence: str, reason: str) -> FindingText:
    for value, kinds in ((kind, FindingKind), (consequence, Consequence)):
        if value not in [member.value for member in kinds]:
            choice = ", ".join(member.value for member in kinds)
            raise click.BadParameter(f"got {value!r}, want one of {choice}", param_hint="--text")
    if not reason.strip():
        raise click.BadParameter("the reason is empty", param_hint="--text")
    return FindingText(FindingKind(kind), Consequence(consequence), " ".join(reason.split()), NO_LINK, "")


def _accept_known_failures(paths: Sequence[Path], framework: str | None, cause: Cause | None, dry_run: bool) -> int:
    records = [load(path) for path in paths]
    path = _known_failures_file(records[0].series.framework, framework)
    framework = records[0].series.framework
    name = f"{path.parent.name}/{FILE}"
    try:
        former = path.read_text("utf-8") if path.exists() else ""
        update = updated(records, read_known(path.parent, framework), former, cause)
        _check(path, update.text, framework)
    except ConfirmError as error:
        raise RecordError(name, error.problem, error.remedy) from None
    except ValueError as error:
        raise RecordError(name, str(error).removeprefix(f"{name}: "), "correct it first") from None
    if dry_run:
        lines = difflib.unified_diff(former.splitlines(True), update.text.splitlines(True), name, name)
        click.echo("".join(lines), nl=False)
    elif update.text != former:
        replace(path, update.text.encode())
    _show_update(update, name, changed=update.text != former, written=not dry_run)
    return 1 if update.unnamed else 0


def _known_failures_file(recorded: str, named: str | None) -> Path:
    """The file of the record's adapter, which must be registered or named by the user."""
    if named not in (None, recorded):
        raise RecordError(
            "the record", f"is of {recorded!r}, not of {named!r}", "name the record's framework, or another record"
        )
    if named is None and recorded not in known():
        remedy = "name it with --framework, or install it"
        raise RecordError("the record", f"is of {recorded!r}, which is not a registered adapter", remedy)
    folder = folder_of(path_of(recorded))
    if folder is None:
        raise RecordError(FILE, f"cannot be written: adapter {recorded} is not installed", "install it first")
    if INSTALLED and folder.is_relative_to(SHIPPED.parent):
        raise RecordError(FILE, f"of {recorded} belongs to an installed suite", "update it in a checkout")
    return folder / FILE


def _check(path: Path, text: str, framework: str) -> None:
    """Validates the new text of the file.

    Raises:
        ValueError: it would not be valid; the message is one line.
    """
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.parent.name
        copy.mkdir()
        for other in path.parent.iterdir():
            if other.name != FILE:
                os.symlink(other.resolve(), copy / other.name)
        (copy / FILE).write_text(text, "utf-8")
        read_known(copy, framework)


def _show_update(update: ExpectationUpdate, name: str, *, changed: bool, written: bool) -> None:
    confirmed = update.confirmed
    series = ", ".join(map(str, confirmed.series))
    if not changed:
        click.echo(f"{name} already agrees with the record of {series}; no change")
    else:
        verb = "is" if written else "would be"
        click.echo(one_line(f"{name}: {series} {verb} judged; changed expectations: {len(confirmed.changes)}"))
    for line in summary_lines(confirmed.changes):
        click.echo(f"  {line}")
    for line in update.added:
        click.echo(one_line(f"  added: {line}"))
    if update.unnamed:
        click.echo(f"{len(update.unnamed)} failures need a finding: add them to one with `--finding ID`")
    for verdict in update.unnamed[:_MAX_LISTED]:
        click.echo(one_line(f"  {verdict.clause} {verdict.case} {verdict.outcome.value} ({verdict.signature})"))
    if update.unnamed[_MAX_LISTED:]:
        click.echo(f"  and {len(update.unnamed) - _MAX_LISTED} more")
    if changed and written and name.partition("/")[0] in built_in():
        click.echo("run `python -m tools pages` to update README's counts")
