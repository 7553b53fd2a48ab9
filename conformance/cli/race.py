"""`conformance race`: compares the speed and the memory of two versions."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from conformance.cli.options import OUTPUT, PATH, put, show_progress
from conformance.race import FEWEST_PAIRS, FIXTURES, NEW, OLD, PAIRS, RaceError
from conformance.sweep.cell import Commands, NotJudged, make_environment, requirements_of
from conformance.sweep.plan import CellGroup, SweepCell, cells_of_group, check_group
from frameworks.installer.distributions import distribution_of
from frameworks.registry import DEVICE_HELP


@click.command(name="race")
@click.argument("old", required=False, default="", metavar="OLD")
@click.argument("new", required=False, default="", metavar="NEW")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help=DEVICE_HELP)
@click.option("--mode", default="", metavar="NAME", help="Mode; by default the adapter's first.")
@click.option("--fixture", type=click.Choice(FIXTURES), default=FIXTURES[0], show_default=True, help="Model to train.")
@click.option("--pairs", type=click.IntRange(min=FEWEST_PAIRS), default=PAIRS, show_default=True, help="Process pairs.")
@click.option("--samples", type=PATH, metavar="FILE", help="Store the samples; without OLD, judge those in FILE.")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
@OUTPUT
def race_command(
    old: str,
    new: str,
    device: str,
    mode: str,
    fixture: str,
    pairs: int,
    samples: Path | None,
    style: str,
    output: Path | None,
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
    put(races.to_json(raced, judgement) if style == "json" else races.table(raced, judgement), output)
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
