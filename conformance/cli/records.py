"""Commands that read records: `conformance table`, `report`, `compare` and `accept`."""

import difflib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from conformance.cli.options import OUTPUT, PATH, put, show_progress
from conformance.known_failures.entries import Known
from conformance.known_failures.reading import (
    FILE,
    SNAPSHOTS,
    Cause,
    Update,
    UpdateError,
    find_idle,
    read_known,
    update,
)
from conformance.runner import baselines
from frameworks.registry import built_in, find_adapters, folder_of, path_of
from results.compare import fingerprints as prints
from results.compare.comparison import NONE, FailOn, compare_files, compare_sets
from results.compare.fingerprints import SUFFIX, list_fingerprints, pair_fingerprints
from results.record.files import RecordError, one_line, replace
from results.record.folders import INSTALLED, SHIPPED, Outlines, find, list_records, read
from results.record.reading import Record, load, pause_collector
from results.show import differences, portability
from results.show import table as tables

MAX_LISTED = 20
"""Largest number of lines of one kind that `accept` prints."""
FINGERPRINTS = {"table": prints.to_text, "markdown": prints.markdown}
"""Writers of compared fingerprints, by format."""


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option(
    "--clauses", is_flag=True, help="Show one word for each clause: portable, differs, broken in X since V, ..."
)
@click.option("--times", "timed", is_flag=True, help="Also show seconds by family, and the slowest tests.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="Output format; markdown: counts, the tests that need action, and the known failures, at most 256 KiB.",
)
@OUTPUT
@pause_collector()
def table(paths: tuple[Path, ...], clauses: bool, timed: bool, style: str, output: Path | None) -> int:
    """Show outcomes by clause family and framework, from records, journals or folders of them (by default the last
    runs).

    \b
    conformance table
    conformance table results/baselines --clauses
    conformance table --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    if style == "table" and output is not None:
        raise click.UsageError("--output needs --format markdown")
    if style == "markdown" and (clauses or timed):
        raise click.UsageError("--clauses and --times are for --format table")
    records = read(paths) if style == "markdown" else read(paths, convert=Outlines())
    console = Console()
    if style == "markdown":
        put(tables.digest(records), output)
    elif clauses:
        for line in portability.list_clauses(records):
            click.echo(line)
    else:
        tables.draw(records, console)
    if timed:
        tables.draw_times(records, console)
    return 0


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
    watch = partial(show_progress, label="reading records")
    if against is None:
        records, comparisons = read(paths, watch, Outlines(details=True)), NONE
    else:
        records = read(paths, watch)
        comparisons = compare_sets(read([against]), records)
    write(records, output, comparisons)
    click.echo(one_line(f"{output}: {len(records)} records, {output.stat().st_size / 2**20:.1f} MiB"))
    return 0


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--format", "style", type=click.Choice(["table", "markdown"]), default="table", show_default=True)
@OUTPUT
@click.option("--partial", is_flag=True, help="Ignore series that only OLD has.")
@click.option(
    "--fail-on",
    type=click.Choice(["worse", "drift", "never"]),
    default="worse",
    show_default=True,
    help="Exit with 1 on a regression, on a regression or drifted numbers, or never.",
)
@click.option("--mode", default="", metavar="A,B", help="Modes of versions; by default those of adapter.toml.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="Device of versions.")
def compare(
    old: str, new: str, style: str, output: Path | None, partial: bool, fail_on: FailOn, mode: str, device: str
) -> int:
    """Show what changed from OLD to NEW: records, journals, folders of them, or versions, compared series by series.

    \b
    conformance compare torch==2.12.1 torch==2.13.0
    conformance compare results/baselines results/records
    conformance compare old.json new.json --format markdown >> "$GITHUB_STEP_SUMMARY"

    Fingerprints, PACKAGE-VERSION.fingerprint.gz of `conformance run --fingerprints`, say which public calls raise
    now, behave otherwise, have other defaults, came or went, whether or not a test exists for them; of folders with
    both they come first. Of records, differences of the suite itself come first, then those of the environments. A
    failure counts whether or not an expectation names it. A changed observation counts as worse, because a new
    default or format can surprise users. In passing tests, numbers are identical, rounding or drift: an error that
    at least tripled and exceeds half of its bound, or a loss that moved by more than its bound. Counted costs are
    compared; costs that vary, such as times, are not. Tests are matched by clause, name and the clause's revision;
    tests that cannot be compared are listed with the reason. A suite that demands less (a lower level, fewer
    checks, a wider bound, a missing curve) is worse.

    The default selection of tests judges a version in an environment of its own, as in a sweep; its record stays in
    results/sweeps/compared, and is used again.

    Exit status: 0, no regression; 1, a regression, drift with --fail-on drift, or between fingerprints alone a call
    that raises now or is gone; 2, a record cannot be read, or fewer
    than half of OLD's tests can be compared.
    """
    inputs = [[Path(text)] if Path(text).exists() or "==" not in text else [] for text in (old, new)]
    fingerprints = pair_fingerprints(*(list_fingerprints(paths) for paths in inputs))
    if fingerprints and not all(map(_has_records, inputs)):
        put(FINGERPRINTS[style](fingerprints), output)
        return max(comparison.exit_status for comparison in fingerprints) if fail_on != "never" else 0
    files = [find(paths) if paths else [] for paths in inputs]
    if not all(files):
        from conformance.cli.sweep import judge_version  # takes pip

        files = [paths or judge_version(text, mode, device) for text, paths in zip((old, new), files, strict=True)]
        folders = (
            [path.parents[1] / "fingerprints" / path.name.partition(".json")[0] for path in paths] for paths in files
        )
        fingerprints = pair_fingerprints(*map(list_fingerprints, folders))
    comparisons = compare_files(files[0], files[1], partial)
    if style == "table" and output is None:
        click.echo(prints.to_text(fingerprints), nl=False)
        differences.draw(comparisons, Console())
    else:
        styles = {"table": differences.to_text, "markdown": differences.markdown}
        put(FINGERPRINTS[style](fingerprints) + styles[style](comparisons), output)
    return comparisons.exit_status(fail_on)


def _has_records(paths: Sequence[Path]) -> bool:
    """Return whether paths name a record, or a folder with one."""
    return any(list_records(path) if path.is_dir() else not path.name.endswith(SUFFIX) for path in paths)


@click.command()
@click.argument("records", type=PATH, nargs=-1, required=True, metavar="RECORD...")
@click.option("--reason", metavar="TEXT", help="Make RECORD the baseline of its series instead, for this reason.")
@click.option("--framework", metavar="NAME", help="Adapter of the records, if it is not registered.")
@click.option("--finding", metavar="ID", help="Finding to which unexpected failures are added.")
@click.option("--clause", "clauses", multiple=True, metavar="ID", help="Only this clause's failures (repeatable).")
@click.option("--dry-run", is_flag=True, help="Print the changes of known failures without writing them.")
def accept(
    records: tuple[Path, ...],
    reason: str | None,
    framework: str | None,
    finding: str | None,
    clauses: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Accept what RECORD shows: as the known failures of its series, or with --reason as the baseline that later runs
    are compared with.

    \b
    conformance accept results/records/torch-2.16.0+cpu-cpu-eager.json
    conformance accept RECORD --framework package.module:Class
    conformance accept RECORD --finding stale-weight-cast --clause autocast.cast-is-fresh
    conformance accept results/records/torch-2.16.0+cpu-cpu-eager.json --reason "first run of 2.16"

    Each RECORD, of a complete run, writes one snapshot next to its adapter, expected/FRAMEWORK-VERSION-DEVICE-MODE.txt,
    with one line for each known failure: test, finding, signature, and the instruction sets of the processors that show
    it. Lines of which the record cannot tell stay, such as those of other processors; a series without a snapshot
    begins with those of the nearest one. With --finding, unexpected failures become lines of it, which
    findings.toml has.

    Exit status: 0, accepted; 1, the listed failures still need a finding; 2, nothing is changed, with the reason in one
    line, such as a record that is incomplete, of another seed, or of older tests.
    """
    if reason is not None:
        if framework is not None or finding is not None or clauses or dry_run:
            raise click.UsageError("want --reason TEXT alone, or the options of known failures without it")
        return _accept_baselines(records, reason)
    if finding is None and clauses:
        raise click.UsageError("--clause needs --finding")
    return _accept_known_failures(records, framework, finding, clauses, dry_run)


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


def _accept_known_failures(
    paths: Sequence[Path], adapter: str | None, finding: str | None, clauses: tuple[str, ...], dry_run: bool
) -> int:
    """Write the snapshots of records; return the exit status.

    Args:
        finding: id of the cause of unexpected failures of these clauses, () for all; None if they need none.
    """
    records = [load(path) for path in paths]
    framework = records[0].series.framework
    folder = _adapter_folder(framework, adapter)
    try:
        former = read_known(folder, framework)
        causes = [Cause(entry, clauses) for entry in former.findings if entry.id == finding]
        if finding is not None and not causes:
            raise UpdateError(f"the finding {finding!r} does not exist", f"add it to {FILE}")
        updates = _make_updates(records, former, *causes)
    except UpdateError as error:
        raise RecordError(folder.name, error.problem, error.remedy) from None
    except ValueError as error:
        raise RecordError(folder.name, str(error).removeprefix(f"{folder.name}/"), "correct it first") from None
    files = {folder / SNAPSHOTS / one.name: one.text for one in updates}
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


def _make_updates(records: Sequence[Record], former: Known, cause: Cause | None = None) -> list[Update]:
    """Return the snapshots of records of one framework, with their new failures under a cause if there is one."""
    framework, *others = dict.fromkeys(record.series.framework for record in records)
    if others:
        raise UpdateError(f"got records of {framework} and {min(others)}, want one framework", "accept them apart")
    updates = [update(record, former) for record in records]
    if cause is None:
        return updates
    if not any(cause.explains(verdict) for one in updates for verdict in one.unexplained):
        raise UpdateError("no failure needs this finding", "omit --finding, or name other clauses")
    return [update(record, former, cause) for record in records]


def _adapter_folder(recorded: str, named: str | None) -> Path:
    """Return the folder of the record's adapter, which must be registered or named by the user."""
    if named not in (None, recorded):
        raise RecordError(
            "the record", f"is of {recorded!r}, not of {named!r}", "name the record's framework, or another record"
        )
    if named is None and recorded not in find_adapters():
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
    _print_first([] if dry_run else changes)
    if update.unexplained:
        click.echo(f"{len(update.unexplained)} failures need a finding: add them to one with `--finding ID`")
    _print_first([f"{one.clause} {one.case} {one.outcome.value} ({one.signature})" for one in update.unexplained])


def _print_first(lines: Sequence[str]) -> None:
    """Print at most `MAX_LISTED` lines, and how many are left out."""
    for line in lines[:MAX_LISTED]:
        click.echo(one_line(f"  {line}"))
    if lines[MAX_LISTED:]:
        click.echo(f"  and {len(lines) - MAX_LISTED} more")
