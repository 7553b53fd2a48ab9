"""`conformance expectations`: an adapter's known failures, updated from records."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from conformance.cli.options import PATH
from conformance.known_failures.confirm import ConfirmError, summary_lines
from conformance.known_failures.reading import FILE, read_known
from conformance.known_failures.update import Cause, ExpectationUpdate
from conformance.known_failures.update import update as updated
from conformance.spec.findings import NO_LINK
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in, known, path_of
from results.record.files import RecordError, one_line, replace
from results.record.folders import INSTALLED, SHIPPED
from results.record.reading import TestVerdict, load
from results.record.texts import Consequence, FindingKind, FindingText

_MAX_LISTED = 20


@click.group()
def expectations() -> None:
    """The known failures of an adapter, and the judged series (versions, devices, modes)."""


@expectations.command(short_help="Update an adapter's known failures from records.")
@click.argument("records", type=PATH, nargs=-1, required=True, metavar="RECORD...")
@click.option(
    "--framework",
    metavar="NAME",
    help="Adapter of the records, as for `conformance run` (needed if it is not registered).",
)
@click.option("--finding", metavar="ID", help="Finding to which unexpected failures are added.")
@click.option("--clause", "clauses", multiple=True, metavar="ID", help="Only this clause (repeatable).")
@click.option(
    "--class", "kind", type=click.Choice([each.value for each in FindingKind]), help="Class of the new finding."
)
@click.option(
    "--consequence", type=click.Choice([each.value for each in Consequence]), help="Consequence of the new finding."
)
@click.option("--reason", metavar="TEXT", help="Reason of the new finding: what goes wrong, in one sentence.")
@click.option(
    "--link",
    metavar="ADDRESS",
    help=f"Link of the new finding: its upstream issue or documentation (default: {NO_LINK!r}).",
)
@click.option("--link-shows", metavar="TEXT", help="What the linked page shows.")
@click.option("--dry-run", is_flag=True, help="Print the changes without writing them.")
def update(
    records: tuple[Path, ...],
    framework: str | None,
    finding: str | None,
    clauses: tuple[str, ...],
    kind: str | None,
    consequence: str | None,
    reason: str | None,
    link: str | None,
    link_shows: str | None,
    dry_run: bool,
) -> int:
    """Update an adapter's expectations.toml from RECORD, a complete run of one version; give one record for each mode.
    Comments and layout stay. An adapter that is neither built in nor installed needs --framework.

    The record's version, device and mode become a judged series. Each entry is changed to apply exactly where the
    record shows its failure: its versions are widened or narrowed, its cases split. An entry that would apply in no
    judged series is removed, and so is a finding without entries. On a new device or in a new mode, entries of the
    nearest series also apply if they fail there. With --finding, unexpected failures become entries of an existing or a
    new finding, for this version, device and mode and for these cases only.

    \b
    conformance expectations update results/records/torch-2.16.0+cpu-cpu-eager.json
    conformance expectations update RECORD --framework package.module:Class
    conformance expectations update RECORD --finding stale-weight-cast --clause autocast.cast-is-fresh
    conformance expectations update RECORD --finding new-one --class documented --consequence error --reason TEXT

    Exit status: 0, every failure is known; 1, the listed failures still need a finding; 2, the file is unchanged, with
    the reason in one line, such as a record that is incomplete, of another seed, or of older tests.
    """
    says = _says(kind, consequence, reason, link, link_shows)
    if finding is None and (says is not None or clauses):
        raise click.UsageError("--clause and the texts of a finding need --finding")
    loaded = [load(path) for path in records]
    path = _file(loaded[0].series.framework, framework)
    framework = loaded[0].series.framework
    name = f"{path.parent.name}/{FILE}"
    try:
        former = path.read_text("utf-8") if path.exists() else ""
        cause = None if finding is None else Cause(finding, says, clauses)
        outcome = updated(loaded, read_known(path.parent, framework), former, cause)
        _check(path, outcome.text, framework)
    except ConfirmError as error:
        raise RecordError(name, error.problem, error.remedy) from None
    except ValueError as error:
        raise RecordError(name, str(error).removeprefix(f"{name}: "), "correct it first") from None
    if dry_run:
        lines = difflib.unified_diff(former.splitlines(True), outcome.text.splitlines(True), name, name)
        click.echo("".join(lines), nl=False)
    elif outcome.text != former:
        replace(path, outcome.text.encode())
    _report(outcome, name, changed=outcome.text != former, written=not dry_run)
    return 1 if outcome.unnamed else 0


def _says(
    kind: str | None, consequence: str | None, reason: str | None, link: str | None, link_shows: str | None
) -> FindingText | None:
    """The text of a new finding; None if no option describes one."""
    if kind is None and consequence is None and reason is None and link is None and link_shows is None:
        return None
    if kind is None or consequence is None or not (reason or "").strip():
        raise click.UsageError("a new finding needs --class, --consequence and --reason")
    if (link in (None, NO_LINK)) != (link_shows is None):
        raise click.UsageError("--link and --link-shows need each other")
    text = " ".join((reason or "").split())
    return FindingText(FindingKind(kind), Consequence(consequence), text, link or NO_LINK, link_shows or "")


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


def _file(recorded: str, named: str | None) -> Path:
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


def _report(outcome: ExpectationUpdate, name: str, *, changed: bool, written: bool) -> None:
    confirmed = outcome.confirmed
    series = ", ".join(map(str, confirmed.series))
    if not changed:
        click.echo(f"{name} already agrees with the record of {series}; no change")
    else:
        verb = "is" if written else "would be"
        click.echo(one_line(f"{name}: {series} {verb} judged; changed expectations: {len(confirmed.changes)}"))
    for line in summary_lines(confirmed.changes):
        click.echo(f"  {line}")
    for line in outcome.added:
        click.echo(one_line(f"  added: {line}"))
    _list(outcome.unnamed)
    if changed and written and name.partition("/")[0] in built_in():
        click.echo("run `python -m tools pages` to update README's counts")


def _list(unnamed: Sequence[TestVerdict]) -> None:
    if unnamed:
        click.echo(f"{len(unnamed)} failures need a finding: add them to one with `--finding ID`")
    for verdict in unnamed[:_MAX_LISTED]:
        click.echo(one_line(f"  {verdict.clause} {verdict.case} {verdict.outcome.value} ({verdict.signature})"))
    if unnamed[_MAX_LISTED:]:
        click.echo(f"  and {len(unnamed) - _MAX_LISTED} more")
