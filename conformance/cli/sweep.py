"""Commands about several versions: `sweep` judges them, `history` shows what each does, `race` compares their speed."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console

from conformance.cli.options import FORMAT, OUTPUT, PATH, put, put_entries, put_table, show_progress
from conformance.race import FEWEST_PAIRS, FIXTURES, NEW, OLD, PAIRS, RaceError
from conformance.sweep.bisection import CellJudge, CellVerdicts
from conformance.sweep.cell import (
    RECORDS,
    SUITE_VARIABLE,
    UNAVAILABLE,
    CellEngine,
    CellFolder,
    CellResult,
    Commands,
    LocalEngine,
    NoEngine,
    NotJudged,
    RayEngine,
    SlurmEngine,
    Sweep,
    make_environment,
    requirements_of,
)
from conformance.sweep.plan import CellGroup, SweepCell, SweepPlan, cells_of, cells_of_group, check_group, read_plan
from frameworks.installer.distributions import distribution_of
from frameworks.registry import DEVICE_HELP
from results.history.changes import LineHistory, compact, is_history, load, markdown, rows, summary
from results.history.changes import history as history_of
from results.history.versions import OUTCOMES, find_releases, gather, lines, load_releases
from results.record.files import RecordError, one_line
from results.record.folders import WRITTEN, list_records

FOLDER = WRITTEN / "sweeps"
"""Folder of all sweeps; each sweep has a folder with its name."""

LIBRARIES = {"ray": "ray", "slurm": "submitit"}
"""The package that each engine needs."""

COMMITTED = Path(__file__).parents[2] / "results" / "sweeps"
"""Folder of the histories that come with a checkout."""


@click.command()
@click.argument("plan_file", metavar="PLAN.toml", type=PATH)
@click.option("--plan", "is_plan", is_flag=True, help="List the cells, and run none.")
@click.option("--only", multiple=True, metavar="CELL", help="Run this cell alone (repeatable).")
@click.option("--fresh", is_flag=True, help="Run cells again that have a record.")
@click.option("--output", type=PATH, metavar="FOLDER", help="Folder of the sweep (default: results/sweeps/NAME).")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Cells at the same time, here.")
@click.option(
    "--engine",
    type=click.Choice(["local", *LIBRARIES]),
    default="local",
    show_default=True,
    help="Run cells here, on the Ray cluster of RAY_ADDRESS, or as jobs of Slurm.",
)
@click.option(
    "--reserve",
    multiple=True,
    metavar="NAME=VALUE",
    help="Custom resource of Ray, or option of sbatch, for each cell (repeatable).",
)
def sweep(
    plan_file: Path,
    is_plan: bool,
    only: tuple[str, ...],
    fresh: bool,
    output: Path | None,
    jobs: int,
    engine: str,
    reserve: tuple[str, ...],
) -> int:
    """Judge many versions of frameworks and their companions with this suite, each in an environment of its own, and
    write a record for each. A cell that has a record is done, so a sweep that was interrupted continues.

    \b
    conformance sweep results/sweeps/jax.toml --plan
    conformance sweep results/sweeps/jax.toml --jobs 2

    Exit status: 0, every cell is judged or cannot be had here; 1, a cell that can be had was not judged; 2, the sweep
    could not be run.
    """
    reserved = _parse_reserved(engine, reserve)
    if not is_plan and engine in LIBRARIES and find_spec(LIBRARIES[engine]) is None:
        raise click.UsageError(f"{LIBRARIES[engine]} is not installed: pip install {LIBRARIES[engine]}")
    check_suite_packages()
    sys.path.insert(0, str(Path.cwd()))
    plan = read_plan(plan_file)
    cells = cells_of(plan)
    names = {cell.name for cell in cells}
    if unknown := [name for name in only if name not in names]:
        raise click.BadParameter(f"no cell {unknown[0]!r}: --plan lists them", param_hint="--only")
    chosen = tuple(cell for cell in cells if cell.name in only or not only)
    folder = CellFolder(output or FOLDER / plan.name, plan)
    if is_plan:
        put_table(("cell", "released", "state"), [(cell.name, cell.released, _state(cell, folder)) for cell in chosen])
        return 0
    run = Sweep(folder, cells, {cell.name for cell in chosen}, _tell(len(chosen)), fresh)
    engines: dict[str, Callable[[], CellEngine]] = {
        "local": lambda: LocalEngine(jobs),
        "ray": lambda: RayEngine(resources={key: float(value) for key, value in reserved.items()}),
        "slurm": lambda: SlurmEngine(folder.path / "slurm", f"conformance-{folder.digest}", reserved),
    }
    try:
        results = run.run(engines[engine])
    except NoEngine as refusal:
        raise click.ClickException(str(refusal)) from None
    counts = Counter(results[cell.name].outcome for cell in chosen)
    click.echo(" · ".join(f"{number} {outcome}" for outcome, number in counts.most_common()))
    click.echo(f"records: {folder.path / RECORDS}")
    return 1 if counts.keys() - UNAVAILABLE - {"judged"} else 0


def judge_version(text: str, mode: str, device: str) -> list[Path]:
    """Return the records of FRAMEWORK==VERSION in these modes, or in those of its adapter.toml; judge missing ones.

    Raises:
        click.ClickException: a cell cannot be judged. RecordError: there is no such version, mode or device.
    """
    framework, _, version = text.partition("==")
    check_suite_packages()
    sys.path.insert(0, str(Path.cwd()))
    group = CellGroup(framework, (version,), modes=tuple(filter(None, mode.split(","))), devices=(device,))
    plan = SweepPlan(text, (group,), ("--tests=core",), fingerprints=True)
    judge = CellJudge(CellFolder(FOLDER / "compared", plan), tell_verdicts)
    results = [judge.judge(cell) for cell in cells_of(plan)]
    if failed := [result for result in results if result.record is None]:
        raise click.ClickException(one_line(f"{text} cannot be judged ({failed[0]}); choose another version"))
    return [Path(result.file) for result in results]


def tell_verdicts(result: CellVerdicts) -> None:
    """Print the result of a release on standard error."""
    companions = ", ".join(f"{name} {version}" for name, version in result.cell.companions.items())
    release = f"{result.cell.release}{f' with {companions}' if companions else ''}"
    click.echo(one_line(f"{release}: {result}"), err=True)


def check_suite_packages() -> None:
    """Refuse a folder of the suite's packages that has no pytest, by a UsageError."""
    folder = os.environ.get(SUITE_VARIABLE, "")
    if folder and not (Path(folder) / "pytest").is_dir():
        raise click.UsageError(f"{SUITE_VARIABLE}: {folder} has no pytest; name site-packages with the suite's")


def _state(cell: SweepCell, folder: CellFolder) -> str:
    if folder.is_done(cell):
        return "judged"
    return f"{cell.outcome}: {cell.reason}" if cell.outcome else "due"


def _parse_reserved(engine: str, texts: Sequence[str]) -> dict[str, str]:
    """Return values by name, of texts NAME=VALUE; refuse other texts, and an engine that reserves nothing."""
    if texts and engine not in LIBRARIES:
        raise click.UsageError("--reserve is for --engine ray or --engine slurm; leave it out, or name the engine")
    result = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise click.BadParameter(f"got {text!r}, want NAME=VALUE", param_hint="--reserve")
        if engine == "ray" and not value.replace(".", "", 1).isdecimal():
            raise click.BadParameter(f"got {text!r}, want a number above 0 as VALUE", param_hint="--reserve")
        result[name] = value
    return result


def _tell(total: int) -> Callable[[SweepCell, CellResult, bool], None]:
    """Return a function that prints the result of each of `total` cells."""
    numbers = count(1)

    def tell(cell: SweepCell, result: CellResult, is_new: bool) -> None:
        outcome = f"{result.outcome} in {result.seconds:.0f} s" if result.seconds else result.outcome
        reason = f" ({result.reason})" if result.reason else ""
        click.echo(one_line(f"[{next(numbers)}/{total}] {cell.name}: {outcome if is_new else 'judged before'}{reason}"))

    return tell


@click.command()
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH...]")
@click.option("--clause", metavar="ID", help="Show this clause, also where it did not change.")
@FORMAT
@OUTPUT
def history(paths: tuple[Path, ...], clause: str | None, style: str, output: Path | None) -> int:
    """Show what releases changed, by their fingerprints, and what the clauses that changed do in each version.

    \b
    conformance history                                    the sweeps of this checkout
    conformance history results/baselines other-records    folders of records, of sweeps or of histories
    conformance history --clause scaling.automaton         one clause, whether or not it changed
    conformance history sweep --format json --output history.json

    A line has the versions of one package, in one mode, on one platform. Versions are compared by the tests that both
    judged; abstentions and unstable tests change nothing.
    """
    releases = find_releases(paths) if paths else load_releases()
    text = "".join(f"{line}\n" for release in releases for line in release.lines())
    alone = bool(paths and releases) and not any(map(_has_histories, paths))
    histories = [] if alone else read_histories(paths or (COMMITTED,))
    if clause is None and style != "json" and output is None:
        click.echo(text, nl=False)
    if alone:
        return 0
    if clause is not None:
        histories = [LineHistory(one.line, {clause: one.clauses[clause]}) for one in histories if clause in one.clauses]
        if not histories:
            raise click.BadParameter(f"no clause {clause!r} in these records", param_hint="--clause")
    if style == "json":
        put(compact(histories), output)
    elif style == "markdown" or output is not None:
        put(f"{code_block(text)}{markdown(histories)}", output)
    else:
        _print_histories(histories, unchanged=clause is not None)
    return 0


def code_block(text: str) -> str:
    """Return a text as a block of Markdown, "" for none."""
    return f"```text\n{text}```\n\n" if text else ""


def _print_histories(histories: Sequence[LineHistory], *, unchanged: bool) -> None:
    """Print the clauses that changed in each line, with `unchanged` all clauses."""
    is_terminal = Console().is_terminal
    for one in histories:
        entries = list(rows(one, unchanged=unchanged))
        if not is_terminal:
            put_entries((one.line.name, *entry) for entry in entries)
            continue
        click.echo(one_line(f"{one.line.name}: {summary(one)}", 2000))
        if entries:
            put_table(("clause", "history", "what changed"), entries)


def read_histories(paths: Sequence[Path]) -> list[LineHistory]:
    """Read the histories of files that this command wrote, and of records, folders of records and folders of sweeps.

    Raises:
        RecordError: a file cannot be read, or a folder has no record.
    """
    sources = [source for path in paths for source in _list_sources(path)]
    written = [source for source in sources if is_history(source)]
    histories = [one for source in written for one in load(source)]
    if records := [source for source in sources if source not in written]:
        contents = gather(records, lambda files: show_progress(files, "reading records"))
        histories += map(history_of, lines(contents))
    return histories


def _has_histories(path: Path) -> bool:
    return path.is_file() or bool(list_records(path) or list_records(path / RECORDS))


def _list_sources(path: Path) -> list[Path]:
    """Return the files of a folder with written histories, its records included; for any other path, the path."""
    files = list_records(path) if path.is_dir() and not (path / OUTCOMES).is_file() else []
    if path == COMMITTED and not files:
        raise RecordError(path, "has no history", "name folders of records")
    return files if any(map(is_history, files)) else [path]


@click.command(name="race")
@click.argument("old", required=False, default="", metavar="OLD")
@click.argument("new", required=False, default="", metavar="NEW")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help=DEVICE_HELP)
@click.option("--mode", default="", metavar="NAME", help="Mode; by default the adapter's first.")
@click.option("--fixture", type=click.Choice(FIXTURES), default=FIXTURES[0], show_default=True, help="Model to train.")
@click.option("--pairs", type=click.IntRange(min=FEWEST_PAIRS), default=PAIRS, show_default=True, help="Process pairs.")
@click.option("--samples", type=PATH, metavar="FILE", help="Store the samples; without OLD, judge those in FILE.")
@OUTPUT
def race_command(
    old: str, new: str, device: str, mode: str, fixture: str, pairs: int, samples: Path | None, output: Path | None
) -> int:
    """Race two versions of a framework on this machine: steps, optimizer step, first step, import, resident memory.

    \b
    conformance race torch==2.12.1 torch==2.13.0
    conformance race torch==2.12.1 torch                     torch of this Python
    conformance race torch@old/bin/python torch@new/bin/python

    A version is installed into an environment. Processes of both versions live side by side and take turns, in several
    pairs; a second process of the old version shows what chance does. Leave a core free.

    Exit status: 0, nothing is worse; 1, something is; 2, it cannot be judged.
    """
    from conformance.race import race as races

    for option, file in (("--output", output), ("--samples", samples)):
        if file is not None and not file.absolute().parent.is_dir():
            raise click.BadParameter(f"there is no folder {file.parent}; make it, or name another", param_hint=option)
    if not old and samples is None:
        raise click.UsageError("name two versions, such as torch==2.12.1 torch==2.13.0, or samples by --samples")
    framework = re.split("[=@]", old)[0]
    if framework != re.split("[=@]", new)[0]:
        raise click.UsageError(f"got {old} and {new or 'nothing'}, want two versions of one framework")
    try:
        sides = {name: side_of(name, text, device, mode) for name, text in ((OLD, old), (NEW, new))} if old else {}
        if sides:
            with ExitStack() as stack:
                pythons = [stack.enter_context(interpreter(name, side)) for name, side in sides.items()]
                racers = [races.Racer(python, framework, device, mode, fixture) for python in pythons]
                raced = races.race(
                    racers[0], racers[1], pairs, watch=lambda numbers: show_progress(numbers, "pairs of processes")
                )
            if samples is not None:
                races.write(samples, raced)
    except RaceError as error:
        raise click.ClickException(str(error)) from None
    if not sides:
        assert samples is not None
        raced = races.load(samples)
    judgement = races.judge(raced)
    put(races.table(raced, judgement), output)
    return judgement.status


def side_of(name: str, text: str, device: str, mode: str) -> Path | SweepCell:
    """Return the Python that a text names (FRAMEWORK@PYTHON, or FRAMEWORK for this one), or for FRAMEWORK==VERSION the
    sweep cell that installs it. The checks that are possible before an installation have passed.

    Args:
        name: "old" or "new".

    Raises:
        RaceError: it cannot run. UnknownFramework: there is no such adapter. RecordError: versions cannot be listed.
    """
    named, at, python = text.partition("@")
    framework, _, version = named.partition("==")
    group = CellGroup(framework, (version or "1",), modes=(mode,) if mode else (), devices=(device,))
    if version and at:
        raise RaceError(f"{name}: got a version and a Python, want one of them")
    if version and framework and distribution_of(framework) is None:
        raise RaceError(f"{name}: nothing is installed for {framework}; name {framework}@PYTHON")
    try:
        check_group(group, group.modes)
        cells = [*cells_of_group(group)] if version else []
    except ValueError as error:
        raise RaceError(f"{name}: {framework}: {error}") from None
    if cells and cells[0].outcome:
        raise RaceError(f"{name}: {cells[0].reason}")
    if at and not (Path(python).is_file() and os.access(python, os.X_OK)):
        raise RaceError(f"{name}: {python}: no such program; name a Python that has the framework")
    return cells[0] if cells else Path(python or sys.executable).absolute()


@contextmanager
def interpreter(name: str, side: Path | SweepCell) -> Iterator[Path]:
    """Yield the Python of a side; a version gets an environment of its time, which is removed after the context.

    Raises:
        RaceError: the version cannot be installed.
    """
    if isinstance(side, Path):
        yield side
        return
    with TemporaryDirectory(prefix="conformance-race-", ignore_cleanup_errors=True) as folder:
        try:
            python = make_environment(Path(folder, "environment"), requirements_of(side), Commands())
        except NotJudged as refusal:
            raise RaceError(f"{name}: {side.name}: {refusal.reason}") from None
        yield python
