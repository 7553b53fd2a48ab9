"""`conformance quickstart` and `conformance install`."""

from __future__ import annotations

import click

from conformance.running import quickstart as quick
from frameworks import install as installing


@click.command()
def quickstart() -> int:
    """Judges the scaling clauses on the float64 NumPy reference, and on a copy of it with one fault, which a clause
    catches. It needs no framework.

    Exit status: 0, the reference passes and the fault is caught; 1, not so.
    """
    return quick.main()


@click.command()
@click.option("--all", "every", is_flag=True, help="Every built-in framework.")
@click.argument("names", nargs=-1, type=click.Choice(list(installing.DISTRIBUTIONS)), metavar="[NAME]...")
def install(every: bool, names: tuple[str, ...]) -> int:
    """Installs frameworks by pip, NAME being torch, tf, paddle or jax: at the pinned versions under their lock, or at
    those that the environment names. `conformance run` does this by itself.

    \b
    conformance install torch
    conformance install --all
    TORCH_VERSION=2.15.0 conformance install torch

    Variables, for NAME one of TORCH, TF, PADDLE and JAX: NAME_VERSION, the framework's version; PACKAGE_VERSION, that
    of any package that comes with it; NAME_INDEX, one more index to look for the framework on; NAME_REQUIREMENT, a
    wheel or a requirement to install in its place. Where the NVIDIA driver answers, the build for GPUs is chosen.

    Exit status: 0; 2, something is not to be had, and one line says what.
    """
    if every == bool(names):
        raise click.UsageError("name the frameworks to install, or give --all")
    if len(set(names)) < len(names):
        raise click.UsageError(f"a framework is named twice: {', '.join(names)}")
    return installing.main(list(names or installing.DISTRIBUTIONS))
