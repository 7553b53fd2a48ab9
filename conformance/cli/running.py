"""`conformance run`: a framework is judged."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from conformance import jobs
from frameworks.registry import known, path_of


def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Adapters whose names begin so."""
    return [CompletionItem(name) for name in sorted(known()) if name.startswith(incomplete)]


@click.command(
    short_help="Judge a framework and write a record.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("framework", shell_complete=names)
@click.option(
    "--modes", envvar="CONFORMANCE_MODES", default="", metavar="A,B", help="The framework's first mode if not given."
)
@click.option("--serial", default="", metavar="A,B", help="Modes whose process keeps state between tests.")
@click.option("--device", envvar="CONFORMANCE_DEVICE", default="auto", show_default=True)
@click.argument("pytest_arguments", nargs=-1, metavar="[PYTEST ARGUMENTS]...")
def run(framework: str, modes: str, serial: str, device: str, pytest_arguments: tuple[str, ...]) -> int:
    """Installs FRAMEWORK at its pinned version (or TORCH_VERSION, TF_VERSION, PADDLE_VERSION, JAX_VERSION), runs the
    suites in each of the modes, prints the table of all records and compares the new ones with the baselines of their
    series.

    \b
    conformance run torch
    conformance run --modes graph,xla tf
    conformance run torch -k scaling --seed=1
    conformance run package.module:Class
    """
    path_of(framework)
    return jobs.job(framework, modes.split(","), serial.split(","), device, pytest_arguments)
