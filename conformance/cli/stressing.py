"""`conformance stress`: one framework at many seeds."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.cli.options import PATH
from conformance.cli.running import names
from conformance.runner import seed_sweep
from frameworks.installer import install
from frameworks.registry import DEVICE_HELP, path_of


@click.command()
@click.argument("framework", shell_complete=names)
@click.argument("pytest_arguments", nargs=-1, metavar="[-- PYTEST ARGUMENTS]...")
@click.option("--modes", default="", metavar="A,B", help="Modes to run (default: the framework's first).")
@click.option("--device", envvar="CONFORMANCE_DEVICE", default="auto", show_default=True, help=DEVICE_HELP)
@click.option(
    "--seeds", type=click.IntRange(min=2), default=10, show_default=True, metavar="N", help="Number of seeds."
)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="First seed.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Number of runs in parallel."
)
@click.option("--records", type=PATH, default=seed_sweep.FOLDER, metavar="FOLDER", help="Directory for records.")
@click.option("--resume", is_flag=True, help="Reuse complete records of an interrupted stress run.")
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
    """Run the suites on FRAMEWORK under many seeds, and list verdicts that differ between seeds.

    A seed determines weights, data, schedules and generated cases; verdicts should not depend on it.

    \b
    conformance stress reference --seeds 30
    conformance stress paddle --modes dygraph,static -- -k parity

    Tests that abstain at every seed are listed and do not count as unstable.

    Exit status: 0, stable; 1, a verdict differs or needs action; 2, a run failed to start.
    """
    path_of(framework)
    if problem := install.lacking(framework, modes.split(",")):
        raise click.ClickException(problem)
    try:
        return max(
            seed_sweep.stress(
                seed_sweep.Stress(framework, mode, device, records, pytest_arguments, resume), first, seeds, jobs
            )
            for mode in modes.split(",")
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
