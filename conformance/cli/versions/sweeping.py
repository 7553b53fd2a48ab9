"""`conformance sweep`: one suite judges many versions, companions and modes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Column, Table

from conformance.cli.options import PATH, FiniteRange
from conformance.cli.versions.suite_folder import SuiteFolder
from conformance.sweep.cells import PYTHON, SweepCell, cells_of, extremes
from conformance.sweep.driver import RECORDS, SweepSettings, VersionSweep
from conformance.sweep.engines import CellEngine, NoEngine
from conformance.sweep.environments import LARGEST, EnvironmentCache, environments_folder
from conformance.sweep.forecast import SweepForecast, forecast
from conformance.sweep.index import PackageIndex
from conformance.sweep.journal import CellEnding
from conformance.sweep.plan import SweepPlan, read_plan
from conformance.sweep.requests import UNAVAILABLE
from results.record.files import one_line
from results.record.folders import WRITTEN

FOLDER = WRITTEN / "sweeps"
"""Where sweeps are, each in a folder of its name."""

_WIDTH = 160
"""Columns of a table that goes to a file."""

_OPTIONS = {"address": ("ray",), "wait_for_nodes": ("ray",), "reserve": ("ray", "slurm")}
"""Engines that have an option."""

_LIBRARIES = {"ray": ("ray", "Ray"), "slurm": ("submitit", "submitit")}
"""The library of an engine: its module and its name."""

GIB = 2**30


class _Form(click.Choice[str]):
    """The form of a forecast; the plan's file in its place is a likely mistake."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str) and value.endswith(".toml"):
            self.fail(f"got {value!r}, want table or json; write --plan after the file", param, ctx)
        return str(super().convert(value, param, ctx))


@click.command()
@click.argument("plan_file", metavar="PLAN.toml", type=PATH)
@click.option(
    "--plan",
    "form",
    is_flag=False,
    flag_value="table",
    type=_Form(["table", "json"]),
    metavar="[table|json]",
    help="List cells, downloads, disk and time, and run nothing; the locks stay in FOLDER. json: a matrix for CI.",
)
@click.option("--only", multiple=True, metavar="CELL", help="Run this cell alone (repeatable).")
@click.option("--extremes", "ends", is_flag=True, help="Run the oldest and the newest version of each series alone.")
@click.option("--retry", is_flag=True, help="Try again what was not judged, such as failed installations.")
@click.option("--fresh", is_flag=True, help="Run all tests again, whatever earlier runs reached.")
@click.option("--folder", type=PATH, metavar="FOLDER", help="Directory of the sweep (default: results/sweeps/NAME).")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Cells at the same time.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes in each cell.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray", "slurm"]),
    default="local",
    show_default=True,
    help="Run cells here, on a Ray cluster or as Slurm jobs.",
)
@click.option("--address", default="auto", show_default=True, metavar="HOST:PORT", help="Address of the Ray cluster.")
@click.option(
    "--reserve",
    multiple=True,
    metavar="NAME=VALUE",
    help="Custom resource of Ray, or option of sbatch, for each cell (repeatable).",
)
@click.option("--wait-for-nodes", is_flag=True, help="Queue cells for which the Ray cluster has no node yet.")
@click.option(
    "--cache-size",
    type=FiniteRange(min=0, min_open=True),
    default=LARGEST / GIB,
    show_default=True,
    metavar="GIB",
    help="Size of all environments.",
)
@click.option(
    "--suite-from",
    type=SuiteFolder(),
    metavar="FOLDER",
    help="site-packages with the suite's packages, which environments then need not install.",
)
def sweep(
    plan_file: Path,
    form: str | None,
    only: tuple[str, ...],
    ends: bool,
    retry: bool,
    fresh: bool,
    folder: Path | None,
    jobs: int,
    workers: int,
    engine: str,
    address: str,
    reserve: tuple[str, ...],
    wait_for_nodes: bool,
    cache_size: float,
    suite_from: Path | None,
) -> int:
    """Judge many versions of frameworks and their companions with this suite, each in an environment of its own, and
    write a record for each. A sweep that was interrupted continues where it ended.

    \b
    conformance sweep results/sweeps/jax.toml --plan
    conformance sweep results/sweeps/jax.toml --extremes
    conformance sweep results/sweeps/jax.toml --jobs 2

    Exit status: 0, every cell is judged or cannot be had here; 1, a cell that can be had was not judged; 2, the sweep
    could not be run.
    """
    reserved = _reserved(engine, reserve)
    _check_engine(engine, needed=form is None)
    sys.path.insert(0, str(Path.cwd()))
    plan, index = read_plan(plan_file), PackageIndex()
    cells = cells_of(plan, index)
    chosen = _chosen(cells, only, ends)
    if form == "json":
        click.echo(json.dumps({"include": [_job(cell) for cell in chosen if not cell.outcome]}))
        return 0
    largest = int(cache_size * GIB)
    beneath = "" if suite_from is None else str(suite_from.absolute())
    path = str(Path.cwd())
    settings = SweepSettings(folder or FOLDER / plan.name, workers, beneath, largest, fresh, retry, path)
    expected = _expected(plan, chosen, settings, index)
    if form:
        _show_forecast(expected)
        return 0
    if expected.disk > expected.free:
        raise click.ClickException(
            f"the environments need about {_gib(expected.disk)}, and {_gib(expected.free)} are free; make room, or set "
            "--cache-size or CONFORMANCE_CACHE"
        )
    run = VersionSweep(plan, cells, settings, frozenset(cell.key for cell in chosen), _tell(len(chosen)))
    try:
        endings = run.run(_engine(engine, jobs, address, reserved, settings, wait_for_nodes))
    except NoEngine as refusal:
        raise click.ClickException(one_line(str(refusal))) from None
    _show(chosen, endings)
    click.echo(f"records: {settings.folder / RECORDS}")
    ended = [endings[cell.key].outcome for cell in chosen]
    return 1 if any(outcome != "judged" and outcome not in UNAVAILABLE for outcome in ended) else 0


def _chosen(cells: Sequence[SweepCell], only: Sequence[str], ends: bool) -> tuple[SweepCell, ...]:
    names = {cell.name: cell for cell in cells}
    if unknown := [name for name in only if name not in names]:
        raise click.BadParameter(f"no cell {unknown[0]!r}: --plan lists them", param_hint="--only")
    chosen = tuple(names[name] for name in dict.fromkeys(only)) if only else tuple(cells)
    return extremes(chosen) if ends else chosen


def _job(cell: SweepCell) -> dict[str, str]:
    """A cell's entry in a matrix of GitHub Actions."""
    version = cell.framework_version or cell.version
    return {
        "cell": cell.name,
        "framework": cell.framework,
        "version": version,
        "package": cell.package,
        "package-version": cell.version,
        "mode": cell.mode,
        "device": cell.device,
        "python": PYTHON,
    }


def _reserved(engine: str, reserve: Sequence[str]) -> dict[str, str]:
    """What each cell reserves; of Ray they are numbers."""
    result = {}
    for word in reserve:
        name, _, value = word.partition("=")
        if not name or not value:
            raise click.BadParameter(f"got {word!r}, want NAME=VALUE", param_hint="--reserve")
        if engine == "ray" and not _amount(value):
            raise click.BadParameter(f"got {word!r}, want a number above 0 as VALUE", param_hint="--reserve")
        result[name] = value
    return result


def _amount(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _check_engine(engine: str, *, needed: bool) -> None:
    """Refuses options of another engine, and an engine whose library is not installed where it is needed."""
    context = click.get_current_context()
    for option, engines in _OPTIONS.items():
        given = context.get_parameter_source(option) is ParameterSource.COMMANDLINE
        if given and engine not in engines:
            word, wanted = f"--{option.replace('_', '-')}", " or ".join(f"--engine {each}" for each in engines)
            raise click.UsageError(f"{word} is for {wanted}, got --engine {engine}; leave it out, or name the engine")
    library, name = _LIBRARIES.get(engine, ("", ""))
    if needed and library and find_spec(library) is None:
        raise click.UsageError(f"{name} is not installed: pip install {library}")


def _engine(
    name: str, jobs: int, address: str, reserved: Mapping[str, str], settings: SweepSettings, wait_for_nodes: bool
) -> Callable[[], CellEngine]:
    """Starts an engine. Modules of those that need a library are imported when they are chosen."""

    def start() -> CellEngine:
        if name == "ray":
            from conformance.sweep.engines.ray_cluster import RayEngine

            amounts = {resource: float(amount) for resource, amount in reserved.items()}
            return RayEngine(address, settings.workers, amounts, wait_for_nodes=wait_for_nodes)
        if name == "slurm":
            from conformance.sweep.engines.slurm import SlurmEngine

            return SlurmEngine(settings.folder / "slurm", settings.sweep, settings.workers, dict(reserved))
        from conformance.sweep.engines.local import LocalEngine

        return LocalEngine(jobs)

    return start


def _expected(
    plan: SweepPlan, cells: Sequence[SweepCell], settings: SweepSettings, index: PackageIndex
) -> SweepForecast:
    locks = settings.locks.read([cell for cell in cells if not cell.outcome], again=settings.retry)
    cache = EnvironmentCache(environments_folder(), settings.largest, settings.beneath)
    return forecast(plan, cells, locks, index, cache, settings.workers)


def _show_forecast(expected: SweepForecast) -> None:
    table = Table(*_columns("cell", "released", "download", "suite"), "remark", box=None, pad_edge=False)
    for each in expected.cells:
        download = "" if each.refused else _mib(each.download) if each.environment else "-"
        seconds = "" if each.refused else "unknown" if each.seconds is None else f"{each.seconds / 60:.1f} min"
        remark = f"not judged: {each.refused}" if each.refused else _unknown(each.unknown)
        table.add_row(each.cell.name, each.cell.released or "unknown", download, seconds, one_line(remark, 200))
    _print(table)
    judged = sum(not each.refused for each in expected.cells)
    click.echo(
        f"{judged} of {len(expected.cells)} cells can be judged: at most {_gib(expected.download)} to download, about "
        f"{_gib(expected.disk)} of disk ({_gib(expected.free)} free), suites at most {expected.seconds / 60:.0f} min "
        "one after the other, without installations"
    )
    if expected.unknown:
        click.echo(f"no index says the size of {', '.join(expected.unknown)}")


def _print(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def _columns(*names: str) -> list[Column]:
    return [Column(name, no_wrap=True) for name in names]


def _unknown(names: Sequence[str]) -> str:
    return f"without {', '.join(names)}, whose size no index says" if names else ""


def _tell(total: int) -> Callable[[SweepCell, CellEnding, bool], None]:
    numbers = count(1)

    def tell(cell: SweepCell, ending: CellEnding, now: bool) -> None:
        took = f" in {sum(ending.seconds.values()):.0f} s" if now and ending.seconds else ""
        ran = f", {ending.ran} tests run, {ending.cached} verdicts from earlier runs"
        judged = ran if ending.outcome == "judged" else ""
        what = f"{ending.outcome}{took}{judged}" if now else f"{ending.outcome} before"
        reason = f" ({ending.reason})" if ending.reason else ""
        click.echo(one_line(f"[{next(numbers)}/{total}] {cell.name}: {what}{reason}"))

    return tell


def _show(cells: Sequence[SweepCell], endings: dict[str, CellEnding]) -> None:
    table = Table(*_columns("cell", "released", "outcome", "verdicts"), "reason", box=None, pad_edge=False)
    for cell in cells:
        ending = endings[cell.key]
        verdicts = str(ending.ran + ending.cached) if ending.record else ""
        table.add_row(cell.name, cell.released, ending.outcome, verdicts, one_line(ending.reason, 120))
    _print(table)
    counts = Counter(endings[cell.key].outcome for cell in cells)
    click.echo(" · ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"
