"""`conformance race`: whether a version is slower than another, or takes more memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from conformance.cli.options import FORMAT, OUTPUT, PATH, FiniteRange, put, watched
from conformance.race.driver import LIMIT_S, PAIRS, ROUNDS, RaceSettings, race
from conformance.race.environments import SideRequest, check, check_named, interpreter
from conformance.race.processes import RaceError, Racer
from conformance.race.samples import FIXTURES, RaceSamples, load, write
from frameworks.registry import DEVICE_HELP, path_of

FEWEST_PAIRS = 5


@click.command(name="race")
@click.argument("framework", required=False, default="")
@click.option("--old", default="", metavar="VERSION", help="Old version; it is installed into an environment.")
@click.option("--new", default="", metavar="VERSION", help="New version, likewise.")
@click.option("--old-python", type=PATH, metavar="PATH", help="Python of an environment with the old version.")
@click.option("--new-python", type=PATH, metavar="PATH", help="Python of an environment with the new one.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help=DEVICE_HELP)
@click.option("--mode", default="", metavar="NAME", help="Mode; by default the adapter's first.")
@click.option("--fixture", type=click.Choice(FIXTURES), default=FIXTURES[0], show_default=True, help="Model to train.")
@click.option("--pairs", type=click.IntRange(min=FEWEST_PAIRS), default=PAIRS, show_default=True, help="Process pairs.")
@click.option("--rounds", type=click.IntRange(min=10), default=ROUNDS, show_default=True, help="Rounds of each pair.")
@click.option(
    "--limit",
    type=FiniteRange(min=0.0),
    default=LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help=f"Start no more pairs after this time, once there are {FEWEST_PAIRS}.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the orders.")
@click.option("--samples", type=PATH, metavar="FILE", help="Store the samples; without FRAMEWORK, judge those in FILE.")
@FORMAT
@OUTPUT
def race_command(
    framework: str,
    old: str,
    new: str,
    old_python: Path | None,
    new_python: Path | None,
    device: str,
    mode: str,
    fixture: str,
    pairs: int,
    rounds: int,
    limit: float,
    seed: int,
    samples: Path | None,
    style: str,
    output: Path | None,
) -> int:
    """Race two versions of FRAMEWORK on this machine: whole step, optimizer step, first step, import, resident memory.

    \b
    conformance race torch --old 2.12.1 --new 2.13.0
    conformance race torch --old-python old/bin/python --new-python new/bin/python

    Processes of both versions live side by side and take turns, in several pairs; a second process of the old version
    shows what chance does. Leave a core free.

    Exit status: 0, nothing is worse; 1, something is; 2, it cannot be judged.
    """
    for option, file in (("--output", output), ("--samples", samples)):
        if file is not None and not file.absolute().parent.is_dir():
            raise click.BadParameter(f"there is no folder {file.parent}; make it, or name another", param_hint=option)
    if not framework:
        if samples is None:
            raise click.UsageError("name a framework, or stored samples by --samples")
        taken = load(samples)
    else:
        path_of(framework)
        sides = (
            SideRequest("old", framework, old, old_python, device, mode),
            SideRequest("new", framework, new, new_python, device, mode),
        )
        try:
            for side in sides:
                check_named(side)
            taken = _raced(sides, fixture, RaceSettings(pairs, rounds, limit, seed))
        except RaceError as error:
            raise click.ClickException(str(error)) from None
        if samples is not None:
            write(samples, taken)
    from conformance.race import rendering
    from conformance.race.judgement import judge  # takes NumPy

    judgement = judge(taken)
    styles = {"table": rendering.table, "markdown": rendering.markdown, "json": rendering.to_json}
    put(styles[style](taken, judgement), output)
    return judgement.status


def _raced(sides: tuple[SideRequest, SideRequest], fixture: str, settings: RaceSettings) -> RaceSamples:
    with ExitStack() as stack:
        old, new = (
            Racer(stack.enter_context(interpreter(each)), each.framework, each.device, each.mode, fixture)
            for each in sides
        )
        taken = race(old, new, settings, lambda pairs: watched(pairs, "pairs of processes"))
    for each, got in zip(sides, (taken.old, taken.new), strict=True):
        check(each, got)
    return taken
