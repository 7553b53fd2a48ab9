"""`conformance stress`: one framework at many seeds."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.running import names
from conformance.doubts import seeds as doubts
from frameworks import install
from frameworks.registry import path_of


@click.command()
@click.argument("framework", shell_complete=names)
@click.argument("pytest_arguments", nargs=-1, metavar="[-- PYTEST ARGUMENTS]...")
@click.option("--modes", default="", metavar="A,B", help="The framework's first mode if not given.")
@click.option("--device", envvar="CONFORMANCE_DEVICE", default="auto", show_default=True)
@click.option("--seeds", type=click.IntRange(min=2), default=10, show_default=True, metavar="N", help="How many.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="The first seed.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Runs at once.")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    default=doubts.FOLDER,
    metavar="FOLDER",
    help="For the records.",
)
@click.option("--resume", is_flag=True, help="Take the whole records that an interrupted stress left there.")
def stress(
    framework: str,
    pytest_arguments: tuple[str, ...],
    modes: str,
    device: str,
    seeds: int,
    first: int,
    jobs: int,
    records: Path,
    resume: bool,
) -> int:
    """Installs FRAMEWORK, runs the suites at many seeds and prints every verdict that is not the same at all of them.

    A seed draws weights, data, schedules and the cases of every property; a correct suite says the same at each.

    \b
    conformance stress reference --seeds 30
    conformance stress paddle --modes dygraph,static -- -k parity

    What abstains at every seed is named, and is no change.

    Exit status: 0; 1, a verdict changed or was bad; 2, a run could not be made.
    """
    path_of(framework)
    if framework in install.DISTRIBUTIONS and install.main([framework]):
        return 2
    statuses = [
        doubts.stress(doubts.Stress(framework, mode, device, records, pytest_arguments, resume), first, seeds, jobs)
        for mode in modes.split(",")
    ]
    return max(statuses)
