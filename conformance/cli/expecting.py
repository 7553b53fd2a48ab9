"""`conformance expectations`: what an adapter is known not to do, written from records of a version."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from conformance.expectations.confirming import ConfirmError, told
from conformance.expectations.entries import FILE, read_known
from conformance.expectations.updating import Cause, Updated
from conformance.expectations.updating import update as updated
from conformance.spec.findings import NONE_FOUND
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in, known, path_of
from results.record.files import RecordError, one_line, replace
from results.record.reading import TestVerdict, load
from results.record.texts import Consequence, FindingKind, FindingText

_SHOWN = 20


@click.group()
def expectations() -> None:
    """The known failures of an adapter, and the series (versions, devices, modes) in which somebody has judged it."""


@expectations.command(short_help="Make an adapter's known failures those that records of a version show.")
@click.argument("records", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RECORD...")
@click.option(
    "--framework",
    metavar="NAME",
    help="The adapter that the records are of, as `conformance run` names it; needed where it is not registered.",
)
@click.option("--finding", metavar="ID", help="Failures that no entry names become entries of this finding.")
@click.option("--clause", "clauses", multiple=True, metavar="ID", help="Of this clause alone; may be given again.")
@click.option("--class", "kind", type=click.Choice([each.value for each in FindingKind]), help="Of a new finding.")
@click.option(
    "--consequence",
    type=click.Choice([each.value for each in Consequence]),
    help="Of a new one: what it does.",
)
@click.option("--reason", metavar="TEXT", help="Of a new finding: what goes wrong, in a sentence.")
@click.option("--link", metavar="ADDRESS", help=f"Of a new finding: where to read of it, {NONE_FOUND!r} by default.")
@click.option("--link-shows", metavar="TEXT", help="What the address shows.")
@click.option("--dry-run", is_flag=True, help="Write nothing, print what would change.")
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
    """Writes an adapter's expectations.toml from RECORD, a whole run of one version; of an adapter with several modes
    all records are named. Comments and layout stay. A record names no place to write to: an adapter that is neither
    built in nor installed is named with --framework.

    The record's version, device and mode become a judged series. Each entry applies in it exactly where the record
    shows the failure: its versions are widened or narrowed, its cases split, and one that would apply in no judged
    series is dropped, with its finding if that was the last. On a device or in a mode that nobody had judged, entries
    of the nearest series become valid too if they fail there. With --finding, failures that no entry names become
    entries of a finding of the file, or of a new one: in this version, on this device, in this mode, of these cases.

    \b
    conformance expectations update results/records/torch-2.16.0+cpu-cpu-eager.json
    conformance expectations update RECORD --framework package.module:Class
    conformance expectations update RECORD --finding stale-weight-cast --clause autocast.cast-is-fresh
    conformance expectations update RECORD --finding new-one --class documented --consequence error --reason TEXT

    Exit status: 0, every failure is known; 1, some still need a finding, which are listed; 2, the file was left as it
    is, and one line says why: a record is interrupted, of some tests or another seed, or its tests have changed since.
    """
    says = _says(kind, consequence, reason, link, link_shows)
    if finding is None and (says is not None or clauses):
        raise click.UsageError("--finding is missing: it names what new entries rest on")
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
    """The text of a new finding, None where no option is about one."""
    if kind is None and consequence is None and reason is None and link is None and link_shows is None:
        return None
    if kind is None or consequence is None or not (reason or "").strip():
        raise click.UsageError("a new finding needs --class, --consequence and --reason")
    if (link in (None, NONE_FOUND)) != (link_shows is None):
        raise click.UsageError("--link and --link-shows stand together")
    text = " ".join((reason or "").split())
    return FindingText(FindingKind(kind), Consequence(consequence), text, link or NONE_FOUND, link_shows or "")


def _check(path: Path, text: str, framework: str) -> None:
    """Reads the file as it would be.

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
    """The file of the adapter that a record names, which the user names too or which is registered."""
    if named not in (None, recorded):
        raise RecordError(
            "the record", f"is of {recorded!r}, not of {named!r}", "name its framework, or another record"
        )
    if named is None and recorded not in known():
        remedy = "name it with --framework if you want its file written, or install it"
        raise RecordError("the record", f"is of {recorded!r}, which is no registered adapter", remedy)
    folder = folder_of(path_of(recorded))
    if folder is None:
        raise RecordError(FILE, f"has no place: the adapter {recorded} is not here", "install it first")
    return folder / FILE


def _report(outcome: Updated, name: str, *, changed: bool, written: bool) -> None:
    confirmed = outcome.confirmed
    series = ", ".join(map(str, confirmed.series))
    if not changed:
        click.echo(f"{name} says of {series} what the record shows; nothing was changed")
    else:
        verb = "is" if written else "would be"
        click.echo(one_line(f"{name}: {series} {verb} judged; changed expectations: {len(confirmed.changes)}"))
    for line in told(confirmed.changes):
        click.echo(f"  {line}")
    for line in outcome.added:
        click.echo(one_line(f"  added: {line}"))
    _list(outcome.unnamed)
    if changed and written and _is_ours(name):
        click.echo("`conformance self pages` makes the counts in the README")


def _list(unnamed: Sequence[TestVerdict]) -> None:
    if unnamed:
        click.echo(f"{len(unnamed)} failures need a finding: `--finding ID` makes them entries of it")
    for verdict in unnamed[:_SHOWN]:
        click.echo(one_line(f"  {verdict.clause} {verdict.case} {verdict.outcome.value} ({verdict.signature})"))
    if unnamed[_SHOWN:]:
        click.echo(f"  and {len(unnamed) - _SHOWN} more")


def _is_ours(name: str) -> bool:
    return name.partition("/")[0] in built_in()
