"""`conformance race`: whether a version is slower than another, or takes more memory."""

from contextlib import ExitStack
from pathlib import Path

import click

from conformance.cli.options import FORMAT, OUTPUT, PATH, put, watched
from conformance.race.environments import SideRequest, check, check_named, interpreter
from conformance.race.processes import FEWEST_PAIRS, FIXTURES, PAIRS, RaceError, Racer, race
from frameworks.registry import DEVICE_HELP, path_of


@click.command(name="race")
@click.argument("old", required=False, default="", metavar="OLD")
@click.argument("new", required=False, default="", metavar="NEW")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help=DEVICE_HELP)
@click.option("--mode", default="", metavar="NAME", help="Mode; by default the adapter's first.")
@click.option("--fixture", type=click.Choice(FIXTURES), default=FIXTURES[0], show_default=True, help="Model to train.")
@click.option("--pairs", type=click.IntRange(min=FEWEST_PAIRS), default=PAIRS, show_default=True, help="Process pairs.")
@click.option("--samples", type=PATH, metavar="FILE", help="Store the samples; without OLD, judge those in FILE.")
@FORMAT
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
    for option, file in (("--output", output), ("--samples", samples)):
        if file is not None and not file.absolute().parent.is_dir():
            raise click.BadParameter(f"there is no folder {file.parent}; make it, or name another", param_hint=option)
    if old:
        sides = _side("old", old, device, mode), _side("new", new, device, mode)
        if sides[0].framework != sides[1].framework:
            raise click.UsageError(f"got {old} and {new or 'nothing'}, want two versions of one framework")
        path_of(sides[0].framework)
        try:
            for side in sides:
                check_named(side)
        except RaceError as error:
            raise click.ClickException(str(error)) from None
    elif samples is None:
        raise click.UsageError("name two versions, such as torch==2.12.1 torch==2.13.0, or samples by --samples")
    from conformance.race import rendering, statistics  # takes NumPy

    if old:
        try:
            with ExitStack() as stack:
                first, second = (
                    Racer(stack.enter_context(interpreter(side)), side.framework, device, mode, fixture)
                    for side in sides
                )
                taken = race(first, second, pairs, watch=lambda numbers: watched(numbers, "pairs of processes"))
            for side, version in zip(sides, (taken.old, taken.new), strict=True):
                check(side, version)
        except RaceError as error:
            raise click.ClickException(str(error)) from None
        if samples is not None:
            statistics.write(samples, taken)
    else:
        assert samples is not None
        taken = statistics.load(samples)
    judgement = statistics.judge(taken)
    styles = {"table": rendering.table, "markdown": rendering.markdown, "json": rendering.to_json}
    put(styles[style](taken, judgement), output)
    return judgement.status


def _side(side: str, text: str, device: str, mode: str) -> SideRequest:
    """FRAMEWORK==VERSION, FRAMEWORK@PYTHON, or FRAMEWORK for this Python."""
    named, at, python = text.partition("@")
    framework, _, version = named.partition("==")
    return SideRequest(side, framework, version, Path(python) if at else None, device, mode)
