"""`conformance accept`: a record's failures become known ones, or the record becomes the baseline of its series."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from conformance.cli.options import PATH
from conformance.known_failures.reading import FILE, SNAPSHOTS, Known, read_known
from conformance.known_failures.update import Cause, Update, UpdateError, find_idle, table_of, update
from conformance.runner import baselines
from conformance.spec.clauses import Table
from conformance.spec.findings import NO_LINK, read_finding
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in, known, path_of
from results.compare.pairing import compare_sets
from results.record.files import RecordError, one_line, replace
from results.record.folders import INSTALLED, SHIPPED
from results.record.reading import load
from results.record.texts import Consequence, FindingKind
from results.show import differences

_MAX_LISTED = 20


@click.command()
@click.argument("records", type=PATH, nargs=-1, required=True, metavar="RECORD...")
@click.option("--reason", metavar="TEXT", help="Make RECORD the baseline of its series instead, for this reason.")
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
    framework: str | None,
    finding: str | None,
    clauses: tuple[str, ...],
    text: tuple[str, str, str] | None,
    dry_run: bool,
) -> int:
    """Accept what RECORD shows: as the known failures of its series, or with --reason as the baseline that later runs
    are compared with.

    \b
    conformance accept results/records/torch-2.16.0+cpu-cpu-eager.json
    conformance accept RECORD --framework package.module:Class
    conformance accept RECORD --finding stale-weight-cast --clause autocast.cast-is-fresh
    conformance accept RECORD --finding new-one --text documented error "what goes wrong"
    conformance accept results/records/torch-2.16.0+cpu-cpu-eager.json --reason "first run of 2.16"

    Each RECORD, of a complete run, writes one snapshot next to its adapter, expected/FRAMEWORK-VERSION-DEVICE-MODE.txt,
    with one line for each known failure: test, finding, signature, and the instruction sets of the processors that show
    it. Lines of which the record cannot tell stay, such as those of other processors; a series without a snapshot
    begins with those of the nearest one. With --finding, unexpected failures become lines of it; --text appends a new
    finding to findings.toml.

    Exit status: 0, accepted; 1, the listed failures still need a finding; 2, nothing is changed, with the reason in one
    line, such as a record that is incomplete, of another seed, or of older tests.
    """
    if reason is not None:
        if framework is not None or finding is not None or clauses or text is not None or dry_run:
            raise click.UsageError("want --reason TEXT alone, or the options of known failures without it")
        return _accept_baselines(records, reason)
    if finding is None and (text is not None or clauses):
        raise click.UsageError("--clause and --text need --finding")
    new = None if text is None or finding is None else _finding_values(finding, *text)
    return _accept_known_failures(records, framework, finding, new, clauses, dry_run)


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


def _finding_values(name: str, kind: str, consequence: str, reason: str) -> dict[str, str]:
    for value, kinds in ((kind, FindingKind), (consequence, Consequence)):
        if value not in [member.value for member in kinds]:
            choice = ", ".join(member.value for member in kinds)
            raise click.BadParameter(f"got {value!r}, want one of {choice}", param_hint="--text")
    if not reason.strip():
        raise click.BadParameter("the reason is empty", param_hint="--text")
    text = " ".join(reason.split())
    return {"id": name, "class": kind, "consequence": consequence, "reason": text, "link": NO_LINK}


def _accept_known_failures(
    paths: Sequence[Path],
    named: str | None,
    finding: str | None,
    new: Mapping[str, str] | None,
    clauses: tuple[str, ...],
    dry_run: bool,
) -> int:
    records = [load(path) for path in paths]
    framework = records[0].series.framework
    folder = _adapter_folder(framework, named)
    try:
        if others := {record.series.framework for record in records} - {framework}:
            raise UpdateError(f"got records of {framework} and {min(others)}, want one framework", "accept them apart")
        former = read_known(folder, framework)
        cause = None if finding is None else _cause(former, folder, framework, finding, new, clauses)
        updates = [update(record, former) for record in records]
        if cause is not None:
            if not any(cause.explains(verdict) for one in updates for verdict in one.unexplained):
                raise UpdateError("no failure needs this finding", "omit --finding, or name other clauses")
            updates = [update(record, former, cause) for record in records]
    except UpdateError as error:
        raise RecordError(folder.name, error.problem, error.remedy) from None
    except ValueError as error:
        raise RecordError(folder.name, str(error).removeprefix(f"{folder.name}/"), "correct it first") from None
    files = {folder / SNAPSHOTS / one.name: one.text for one in updates}
    if new is not None:
        path = folder / FILE
        before = f"{path.read_text('utf-8').rstrip()}\n\n" if path.exists() else ""
        files[path] = before + table_of(new)
    for path, content in files.items():
        if dry_run:
            before = path.read_text("utf-8") if path.exists() else ""
            name = str(path.relative_to(folder.parent))
            lines = difflib.unified_diff(before.splitlines(True), content.splitlines(True), name, name)
            click.echo("".join(lines), nl=False)
        else:
            path.parent.mkdir(exist_ok=True)
            replace(path, content.encode())
    for one in updates:
        _show_update(one, f"{folder.name}/{SNAPSHOTS}/{one.name}", dry_run)
    for name in find_idle(former, updates):
        click.echo(f"no known failure rests on {name} any more; remove it from {folder.name}/{FILE}")
    if not dry_run and framework in built_in():
        click.echo("run `python -m tools pages` to update README's counts")
    return int(any(one.unexplained for one in updates))


def _cause(
    former: Known, folder: Path, framework: str, name: str, new: Mapping[str, str] | None, clauses: tuple[str, ...]
) -> Cause:
    existing = [finding for finding in former.findings if finding.id == name]
    if existing and new is not None:
        raise UpdateError(f"the finding {name!r} exists already", "omit --text")
    if not existing and new is None:
        raise UpdateError(f"the finding {name!r} does not exist", "describe it with --text CLASS CONSEQUENCE REASON")
    finding = read_finding(Table(f"finding {name}", new), folder=folder, framework=framework) if new else existing[0]
    return Cause(finding, clauses)


def _adapter_folder(recorded: str, named: str | None) -> Path:
    """The folder of the record's adapter, which must be registered or named by the user."""
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
    return folder


def _show_update(update: Update, name: str, dry_run: bool) -> None:
    changes = list(update.changes())
    would = "would have" if dry_run else "has"
    known = f"{len(update.after)} known failures of {update.series}"
    click.echo(one_line(f"{name} {would} {known}{f', {len(changes)} lines change' if changes else ', no change'}"))
    lines = [] if dry_run else changes[:_MAX_LISTED]
    for line in lines:
        click.echo(one_line(f"  {line}"))
    if lines and changes[_MAX_LISTED:]:
        click.echo(f"  and {len(changes) - _MAX_LISTED} more")
    if update.unexplained:
        click.echo(f"{len(update.unexplained)} failures need a finding: add them to one with `--finding ID`")
    for verdict in update.unexplained[:_MAX_LISTED]:
        click.echo(one_line(f"  {verdict.clause} {verdict.case} {verdict.outcome.value} ({verdict.signature})"))
    if update.unexplained[_MAX_LISTED:]:
        click.echo(f"  and {len(update.unexplained) - _MAX_LISTED} more")
