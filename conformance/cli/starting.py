"""`conformance quickstart` and `conformance install`."""

from __future__ import annotations

import click
from click.core import ParameterSource

from conformance.runner import quickstart as quick
from frameworks.installer import install as installing


@click.command()
def quickstart() -> int:
    """Run the scaling clauses on the float64 NumPy reference and on a copy of it with one bug, which a clause catches.
    No framework is needed.

    Exit status: 0, the reference passes and the bug is caught; 1, otherwise.
    """
    return quick.main()


@click.command()
@click.option("--all", "every", is_flag=True, help="Install all built-in frameworks.")
@click.option(
    "--modes",
    envvar="CONFORMANCE_MODES",
    default="",
    metavar="A,B",
    help="Also install what these modes need, such as accelerate.",
)
@click.argument("names", nargs=-1, type=click.Choice(list(installing.DISTRIBUTIONS)), metavar="[NAME]...")
def install(every: bool, modes: str, names: tuple[str, ...]) -> int:
    """Install frameworks with pip (NAME is torch, tf, paddle or jax): the pinned versions and their lock, or the
    versions that environment variables select.

    \b
    conformance install torch
    conformance install --all
    conformance install torch --modes lightning
    TORCH_VERSION=2.15.0 conformance install torch

    Variables, with NAME one of TORCH, TF, PADDLE and JAX: NAME_VERSION, version of the framework; PACKAGE_VERSION,
    version of any package that comes with it; NAME_INDEX, an additional package index; NAME_REQUIREMENT, a wheel or
    requirement to install instead. If an NVIDIA driver is present, the GPU build is chosen.

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
        raise click.UsageError(f"--modes: got {', '.join(unknown)}, want {choice}")
    return installing.main(chosen, wanted)
