"""Commands that read records: `conformance table`, `report` and `compare`."""

from pathlib import Path

import click
from rich.console import Console

from conformance.cli.options import FORMAT, OUTPUT, PATH, put, watched
from results.compare.pairing import NONE, FailOn, compare_files, compare_sets
from results.record.encoding import without_collecting
from results.record.files import one_line
from results.record.folders import Outlines, find, read
from results.show import differences, digest, portability, times
from results.show import table as tables
from results.show.marks import title


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]...")
@click.option(
    "--clauses", is_flag=True, help="Show one word for each clause: portable, differs, broken in X since V, ..."
)
@click.option("--times", "timed", is_flag=True, help="Also show seconds by family, and the slowest tests.")
@click.option("--strict", is_flag=True, help="Exit with 1 if an outcome needs action or a run was interrupted.")
@click.option("--width", type=click.IntRange(20, 1000), metavar="N", help="Width in columns (default: the terminal's).")
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="Output format; markdown: counts, the tests that need action, and the known failures, at most 256 KiB.",
)
@OUTPUT
@without_collecting()
def table(
    paths: tuple[Path, ...],
    clauses: bool,
    timed: bool,
    strict: bool,
    width: int | None,
    style: str,
    output: Path | None,
) -> int:
    """Show outcomes by clause family and framework, from records, journals or folders of them (by default the last
    runs).

    \b
    conformance table
    conformance table results/baselines --clauses
    conformance table --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    if style == "table" and output is not None:
        raise click.UsageError("--output needs --format markdown")
    if style == "markdown" and (clauses or timed or width is not None):
        raise click.UsageError("--clauses, --times and --width are for --format table")
    records = read(paths) if style == "markdown" else read(paths, convert=Outlines())
    console = Console(width=width)
    if style == "markdown":
        put(digest.markdown(records), output)
    elif clauses:
        for line in portability.listed(records):
            click.echo(line)
    else:
        tables.draw(records, console)
    if timed:
        times.draw(records, console)
    problems = [(record, tables.troubles(record)) for record in records] if strict else []
    for record, troubles in problems:
        if troubles:
            click.echo(f"{' '.join(title(record)[:3])}: {', '.join(troubles)}", err=True)
    return 1 if any(troubles for _, troubles in problems) else 0


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
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
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

    Differences of the suite itself come first, then those of the environments. A failure counts whether or not an
    expectation names it. A changed observation counts as worse, because a new default or format can surprise users. In
    passing tests, numbers are identical, rounding or drift: an error that at least tripled and exceeds half of its
    bound, or a loss that moved by more than its bound. Counted costs are compared; costs that vary, such as times, are
    not. Tests are matched by clause, name and the clause's revision; tests that cannot be compared are listed with the
    reason. A suite that demands less (a lower level, fewer checks, a wider bound, a missing curve) is worse.

    The default selection of tests judges a version in an environment of its own, as in a sweep; its record stays in
    results/sweeps/compared, and is used again.

    Exit status: 0, no regression; 1, a regression, or drift with --fail-on drift; 2, a record cannot be read, or fewer
    than half of OLD's tests can be compared.
    """
    files = [find([Path(text)]) if Path(text).exists() or "==" not in text else [] for text in (old, new)]
    for index, text in enumerate((old, new)):
        if not files[index]:
            from conformance.cli.versions.sweeping import judge_version  # takes pip

            files[index] = judge_version(text, mode, device)
    comparisons = compare_files(files[0], files[1], partial)
    if style == "table" and output is None:
        differences.draw(comparisons, Console())
    else:
        styles = {"table": differences.to_text, "markdown": differences.markdown, "json": differences.to_json}
        put(styles[style](comparisons), output)
    return comparisons.exit_status(fail_on)
