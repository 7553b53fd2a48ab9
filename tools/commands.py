"""`python -m tools`: what develops the suite itself."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from results.record.files import one_line
from tools import style as phrases

ROOT = Path(__file__).parents[1]


class Tool(NamedTuple):
    """The purpose of a program in one line, and the arguments of `python -m`, which the user's follow."""

    purpose: str
    arguments: tuple[str, ...]


WITH_FRAMEWORKS = (
    "tests/adapters/test_named_devices.py",
    "tests/adapters/test_torch_modes.py",
    "tests/runner/test_machine.py",
)
"""The suite's own tests that need a framework, which `tox -e self` does not install."""

TOOLS: Mapping[str, Tool] = {
    "test": Tool(
        "The suite's own tests, by pytest; -m slow for the whole runs of nightly CI.",
        ("pytest", "--numprocesses=2", "--dist=worksteal", "--timeout=900", "-mnot slow", "tests"),
    ),
    "faults": Tool("Is every fault of tools/faults caught by its clauses?", ("tools.faults",)),
    "curves": Tool("Measure `conformance curves` on pairs of real runs; needs PyTorch.", ("tools.curves",)),
    "drawn": Tool("What generated tests draw, and what they never do.", ("conformance.generative.coverage",)),
    "programs": Tool(
        "The program of every finding, and tests of adapters that need their framework.",
        ("pytest", "--numprocesses=2", "--timeout=900", "tests/programs.py", *WITH_FRAMEWORKS),
    ),
    "baselines": Tool("Were the baselines written by this suite?", ("tools.baselines",)),
    "processors": Tool("Frameworks as on processors with fewer instruction sets.", ("tools.processors",)),
    "ladder": Tool("How many tests each step of a new adapter brings.", ("tools.ladder",)),
    "limits": Tool("Is the tree as small as LIMITS.toml says?", ("tools.limits",)),
    "selections": Tool("Make the selections of tests again, from kills and seconds.", ("tools.selections",)),
    "spreads": Tool("Collect the oracle's spreads from cache folders.", ("conformance.oracle.bounds_cache",)),
    "screenshot": Tool("The picture of the report, taken in Chromium.", ("tools.browser",)),
    "lock": Tool("Make locks/*.txt again.", ("frameworks.installer.locks",)),
    "bench": Tool("Absolute times of a step, by pytest-benchmark.", ("pytest", "tools/benchmarks", "-rs")),
}
"""By the name of the command."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def commands() -> None:
    """Develop the suite. A command that starts a program runs it in the checkout, with paths relative to it, and passes
    on all that follows its name, --help among it.

    \b
    python -m tools test -k scaling
    python -m tools faults ScaleGrowsToInfinity
    python -m tools bench --framework=torch
    """


@commands.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER...")
def releases(folders: tuple[Path, ...]) -> None:
    """Write results/releases from the fingerprints below FOLDERs: what each release of a package changed."""
    from results.history.versions import FOLDER, find_releases, write_releases
    from results.record.files import replace

    for name, content in write_releases(find_releases(folders)).items():
        FOLDER.mkdir(exist_ok=True)
        replace(FOLDER / name, content)
        click.echo(FOLDER / name)


@commands.command(short_help="Make the committed tables of README and docs, and results/schema.json, again.")
def pages() -> None:
    """Makes README's tables, the summaries of docs, and results/schema.json. Each file is named as it starts; nothing
    is written before all of them are made. `python -m tools docs` makes the rest of the documentation.
    """
    from tools.docs import generate

    try:
        changed = generate.stale(write=True, report=click.echo)
    except generate.PageError as error:
        raise click.ClickException(str(error)) from None
    for name in changed:
        click.echo(f"{name} is made again")


@commands.command(short_help="Build the documentation as an offline site, or print one page.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="site", metavar="[FOLDER]")
@click.option("--page", metavar="NAME", help="Print this page as Markdown instead, such as causes or clauses.")
def docs(folder: Path, page: str | None) -> None:
    """Builds the documentation: the pages of docs with their generated tables, and the lists of all clauses and
    faults. The site needs no network and no server: open FOLDER/index.html. MkDocs builds it (`tox -e docs`); --page
    needs nothing but the suite.

    \b
    python -m tools docs
    python -m tools docs --page causes
    """
    from tools.docs import generate, site

    try:
        if page is None:
            site.build(folder)
            click.echo(f"{folder / 'index.html'} is made")
        else:
            click.echo(site.text(page))
    except generate.PageError as error:
        raise click.ClickException(str(error)) from None


@commands.command(short_help="Find phrases that need a second reading.")
def style() -> int:
    """Search messages, docstrings, documentation and TOML texts for phrases of tools/style.toml, which
    CONTRIBUTING.md explains.

    Exit status: 0, there are none; 1, each is listed with what to write instead.
    """
    result = list(phrases.hits(phrases.texts()))
    for hit in result:
        click.echo(one_line(str(hit)))
    return 1 if result else 0


def _command(name: str, tool: Tool) -> click.Command:
    def start(arguments: tuple[str, ...]) -> None:
        sys.stdout.flush()
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", *tool.arguments, *arguments])

    return click.Command(
        name,
        callback=start,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        short_help=tool.purpose,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )


for _name, _tool in TOOLS.items():
    commands.add_command(_command(_name, _tool))
