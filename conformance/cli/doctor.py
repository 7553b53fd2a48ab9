"""`conformance doctor`: what a run needs, one step after the other."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from conformance.cli.options import names
from conformance.cli.running import import_from_here
from conformance.doctor.checking import checked

VERSION = 1
"""Of the JSON that `--format json` prints."""


@click.command()
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...", shell_complete=names)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device that has to work; auto: a GPU where NVIDIA's driver is installed.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=180,
    show_default=True,
    metavar="SECONDS",
    help="Longest time of a framework's process.",
)
def doctor(frameworks: tuple[str, ...], device: str, form: str, limit: int) -> int:
    """Check step by step what a run of each FRAMEWORK (by default of each installed one) needs, and name the step that
    fails: Python and requirements, NVIDIA's driver, the installed version and build, import, a product on the CPU; on
    the GPU visibility, memory, timing and use by two processes; the adapter.

    \b
    conformance doctor
    conformance doctor torch --device cuda
    conformance doctor --format json

    Exit status: 0, all that the device needs works; 1, a step failed; 2, bad usage.
    """
    if len(set(frameworks)) < len(frameworks):
        raise click.UsageError(f"a framework is named twice: {', '.join(frameworks)}")
    if any(":" in name for name in frameworks):
        import_from_here()
    steps = []
    for step in checked(frameworks, device, limit):
        steps.append(step)
        if form == "text":
            click.echo(str(step))
    status = int(any(step.state == "failed" for step in steps))
    if form == "json":
        document = {"version": VERSION, "device": device, "status": status, "steps": [asdict(step) for step in steps]}
        click.echo(json.dumps(document, indent=1))
    return status
