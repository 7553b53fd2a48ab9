"""Commands for the start: `conformance quickstart`, `new` and `install`."""

import os
from pathlib import Path

import click
from click.core import ParameterSource

from conformance.cli.options import PATH
from conformance.runner import quickstart as quick
from frameworks.installer import install as installing
from frameworks.skeleton import import_path_of, write_adapter, write_loop
from results.record.files import one_line


@click.command()
def quickstart() -> int:
    """Run the scaling clauses on the float64 NumPy reference and on a copy of it with one bug, which a clause catches.
    No framework is needed.

    Exit status: 0, the reference passes and the bug is caught; 1, otherwise.
    """
    return quick.main()


@click.group()
def new() -> None:
    """Create a training loop to judge, or an adapter of a framework.

    \b
    conformance new loop FOLDER
    conformance new adapter FOLDER
    """


@new.command()
@click.argument("folder", type=PATH)
def loop(folder: Path) -> None:
    """Create my_training.py in FOLDER: a correct PyTorch loop of three methods, to replace by your own."""
    try:
        path = write_loop(folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"judge it: cd {folder} && python -m conformance run {path.stem}:Loop --tests quick"))


@new.command()
@click.argument("folder", type=PATH)
@click.option("--name", metavar="NAME", help="Name of the adapter; by default that of the folder.")
def adapter(folder: Path, name: str | None) -> None:
    """Create an adapter in the new FOLDER: a package without capabilities, for which nearly every test ends as `not
    offered`. docs/adapters.md explains how to add capabilities.
    """
    _write_adapter(os.path.basename(os.path.realpath(folder)) if name is None else name, folder)


def _write_adapter(name: str, folder: Path) -> None:
    try:
        files = write_adapter(name, folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    for path in files:
        click.echo(one_line(f"wrote {path}"))
    click.echo(one_line(f"run the suite: PYTHONPATH={folder} python -m conformance run {import_path_of(name)}"))
    click.echo(one_line(f"or install the adapter (pip install -e {folder}), then: python -m conformance run {name}"))


@click.command()
@click.option("--all", "every", is_flag=True, help="Install all built-in frameworks.")
@click.option(
    "--mode",
    "modes",
    envvar="CONFORMANCE_MODES",
    default="",
    metavar="A,B",
    help="Also install what these modes need, such as accelerate.",
)
@click.argument("names", nargs=-1, type=click.Choice(list(installing.DISTRIBUTIONS)), metavar="[NAME]...")
def install(every: bool, modes: str, names: tuple[str, ...]) -> int:
    """Install frameworks by uv or pip (NAME is torch, tf, paddle or jax): the locked versions, or those that
    environment variables select.

    \b
    conformance install torch
    conformance install --all
    conformance install torch --mode lightning
    TORCH_VERSION=2.15.0 conformance install torch

    Variables, with NAME one of TORCH, TF, PADDLE and JAX: NAME_VERSION, version of the framework; PACKAGE_VERSION,
    version of any package that comes with it; NAME_INDEX, an additional package index; NAME_REQUIREMENT, a wheel or
    requirement to install instead. CONFORMANCE_INSTALLER is uv, the default where it is installed, or pip. If an
    NVIDIA driver is present, the GPU build is chosen.

    Exit status: 0, installed; 2, a package is not available, with the reason in one line.
    """
    if every == bool(names):
        raise click.UsageError("name the frameworks to install, or use --all")
    if len(set(names)) < len(names):
        raise click.UsageError(f"a framework is named twice: {', '.join(names)}")
    chosen = list(names or installing.DISTRIBUTIONS)
    wanted = [mode for mode in modes.split(",") if mode]
    known = {mode for name in chosen for mode in installing.DISTRIBUTIONS[name].modes}
    given = click.get_current_context().get_parameter_source("modes") is ParameterSource.COMMANDLINE
    if given and (unknown := sorted(set(wanted) - known)):
        choice = f"one of {', '.join(sorted(known))}" if known else f"none, {', '.join(chosen)} needs no more packages"
        raise click.UsageError(f"--mode: got {', '.join(unknown)}, want {choice}")
    return installing.main(chosen, wanted)
