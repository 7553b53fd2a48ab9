"""`conformance bundle`: the suite and a framework's wheels in one file."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from conformance.bundle.packing import pack
from conformance.bundle.target import Target, parsed
from conformance.cli.options import names
from conformance.runner.adapter_info import check_mode
from frameworks.installer.distributions import Unavailable
from frameworks.installer.request import redacted
from frameworks.installer.resolution import distribution_of
from frameworks.registry import built_in
from results.record.files import one_line

_HERE = ".".join(platform.python_version_tuple()[:2])


@click.command()
@click.argument("framework", metavar="FRAMEWORK[==VERSION]", shell_complete=names)
@click.option("--python", default=_HERE, show_default="this one", metavar="VERSION", help="Python of the target.")
@click.option(
    "--cuda", default="", metavar="VERSION", help="Newest CUDA that the target's driver runs; CPU without it."
)
@click.option("--modes", default="", metavar="A,B", help="Modes to test; by default those of `conformance run`.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The file to write.")
@click.option("--dirty", is_flag=True, help="Pack tracked files that differ from the commit, as they are.")
def bundle(framework: str, python: str, cuda: str, modes: str, output: Path | None, dirty: bool) -> int:
    """Pack the checkout, FRAMEWORK's wheels and a script into one file, for a Linux machine without a network. There:
    unpack it, and run `run.sh` with arguments for pytest; it verifies hashes, makes a virtual environment, and leaves
    the records in records/.

    \b
    conformance bundle torch
    conformance bundle torch==2.13.0 --python 3.12 --cuda 13.0
    conformance bundle reference
    tar xf conformance-torch-2.13.0-py312-cu130.tar
    conformance-torch-2.13.0-py312-cu130/run.sh --tests quick

    NAME_INDEX (TORCH_INDEX, ...) is the address of an additional index with the framework's wheels.

    Exit status: 0, written; 2, it cannot be packed, with the reason in one line.
    """
    try:
        name, version = parsed(framework)
        chosen = [*filter(None, modes.split(","))]
        for mode in chosen:
            check_mode(name, mode)
        if cuda and name in built_in() and distribution_of(name) is None:
            raise ValueError(f"{name} has no wheels for CUDA; leave --cuda out")
        path = pack((name, version), chosen, Target(python, cuda), output, dirty=dirty)
    except (Unavailable, ValueError) as error:
        click.echo(f"conformance: {one_line(redacted(str(error)))}", err=True)
        return 2
    click.echo(f"{path} ({path.stat().st_size / 2**20:.0f} MiB)")
    return 0
