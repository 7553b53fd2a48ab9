"""`conformance self`: what develops the suite itself. It starts modules of tests and benchmarks by their names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Tool:
    """A program of the checkout.

    Attributes:
        purpose: what it does, in one line.
        words: what Python is started with; the user's own words follow.
    """

    purpose: str
    words: tuple[str, ...]


WITH_FRAMEWORKS = (
    "tests/test_cache_folder.py",
    "tests/test_deepspeed_mode.py",
    "tests/test_keras_mode.py",
    "tests/test_temporary_directory.py",
)
"""Tests of the suite's own that are skipped where a framework is not installed, as it is not in `tox -e self`."""

TOOLS: Mapping[str, Tool] = {
    "test": Tool(
        "The suite's own tests, by pytest.",
        ("pytest", "--numprocesses=2", "--dist=worksteal", "--timeout=900", "tests"),
    ),
    "faults": Tool("Is every fault of tests/faults caught by its clauses?", ("tests.faults",)),
    "mutation": Tool("A sample of first-order mutants of the reference, by cosmic-ray.", ("tests.faults.mutation",)),
    "drawn": Tool("What the laws draw, and what they never do.", ("conformance.laws.coverage",)),
    "programs": Tool(
        "The program of every finding, and tests of adapters that need their framework.",
        ("pytest", "--numprocesses=2", "--timeout=900", "tests/programs.py", *WITH_FRAMEWORKS),
    ),
    "vacuity": Tool(
        "Which tests does no blinded framework fail?",
        ("pytest", "--numprocesses=2", "--timeout=120", "--framework=reference", "--vacuity"),
    ),
    "schema": Tool("Make results/schema.json again, from the classes of a record.", ("results.record.schema",)),
    "spreads": Tool("Collect the oracle's spreads from cache folders.", ("conformance.oracle.stored_spreads",)),
    "screenshot": Tool("The picture of the report, taken in Chromium.", ("tests.screenshot",)),
    "lock": Tool("Make locks/*.txt again.", ("frameworks.installer.lock",)),
    "overhead": Tool("What an adapter adds to the time of a step.", ("benchmarks.overhead",)),
    "bench": Tool("Absolute times of a step, by pytest-benchmark.", ("benchmarks.steps",)),
    "roofline": Tool("How far steps are from what the device's rates allow.", ("benchmarks.roofline",)),
    "encoder": Tool("The effect of 8-bit loading on a real sentence encoder.", ("benchmarks.encoder",)),
}
"""By the name of the command."""


@click.group(name="self")
def development() -> None:
    """What develops the suite itself. Each command runs in the checkout, with paths relative to it, in place of this
    process; what follows its name goes to the program, --help among it.

    \b
    conformance self test -k scaling
    conformance self faults ScaleGrowsToInfinity
    conformance self overhead torch
    """


@development.command(short_help="Make the generated parts of README and results/schema.json again.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file is not as it would be made.")
def pages(check: bool) -> int:
    """Makes README's blocks and results/schema.json. Each file is named as it starts; nothing is written before all of
    them are made. `conformance docs` makes the rest of the documentation.

    \b
    conformance self pages
    conformance self pages --check
    """
    from conformance.pages import generate

    try:
        changed = generate.stale(
            write=not check, report=lambda page: click.echo(f"{page.relative_to(generate.ROOT)} …")
        )
    except generate.PageError as error:
        raise click.ClickException(str(error)) from None
    for page in changed:
        click.echo(f"{page.relative_to(generate.ROOT)} {'is out of date' if check else 'is made again'}")
    return 1 if check and changed else 0


def _command(name: str, tool: Tool) -> click.Command:
    def start(words: tuple[str, ...]) -> None:
        sys.stdout.flush()
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", *tool.words, *words])

    return click.Command(
        name,
        callback=start,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        short_help=tool.purpose,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )


for _name, _tool in TOOLS.items():
    development.add_command(_command(_name, _tool))
