"""`conformance run`: a framework is judged, or a scenario is run in some of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from conformance.cli.options import PATH, completing, names, watched
from conformance.runner.selection import NAMES
from frameworks.adapter_file import adapter_file
from frameworks.registry import DEVICE_HELP, known, path_of
from frameworks.ways import declared, sets
from results.record.files import one_line

if TYPE_CHECKING:
    from conformance.scenarios import Scenario
    from conformance.scenarios.launching import FrameworkResult


def _scenarios() -> Iterable[str]:
    from conformance.scenarios import SCENARIOS

    return SCENARIOS


def _folder() -> Path:
    from conformance.scenarios.launching import FOLDER

    return FOLDER


class RunCommand(click.Command):
    """A command whose own options may stand anywhere; all other words after FRAMEWORK are pytest's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Moves this command's options before the other words, up to a `--`."""
        end = args.index("--") if "--" in args else len(args)
        options = {name: each for each in self.params if isinstance(each, click.Option) for name in each.opts}
        own: list[str] = []
        others: list[str] = []
        words = iter(args[:end])
        for word in words:
            name, equals, _ = word.partition("=")
            (own if name in options else others).append(word)
            if name in options and not equals and not options[name].is_flag:
                own.extend(value for value in [next(words, None)] if value is not None)
        return super().parse_args(ctx, [*own, *others, *args[end + 1 :]])


@click.command(cls=RunCommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("framework", required=False, default="", shell_complete=names)
@click.option(
    "--mode",
    "modes",
    envvar="CONFORMANCE_MODES",
    default="",
    metavar="A,B",
    help="Modes to test; by default those of adapter.toml, or else the first one.",
)
@click.option(
    "--ways",
    default="",
    metavar="A,B",
    help="Public calls of techniques instead of the default ones (`conformance ways`); all: in as few runs as can be.",
)
@click.option(
    "--tests",
    envvar="CONFORMANCE_TESTS",
    type=click.Choice(NAMES),
    help="quick: about a minute of work; core: the default, unless other options select tests; all.",
)
@click.option(
    "--device", envvar="CONFORMANCE_DEVICE", default="auto", show_default=True, metavar="NAME", help=DEVICE_HELP
)
@click.option(
    "--scenario", metavar="NAME", shell_complete=completing(_scenarios), help="Run this scenario instead of the tests."
)
@click.option("--list-scenarios", is_flag=True, help="List scenarios and exit.")
@click.option("--rounds", type=click.IntRange(min=2), metavar="N", help="End the scenario after N rounds.")
@click.option("--folder", type=PATH, default=_folder, metavar="FOLDER", help="Directory for the scenario's records.")
@click.argument("pytest_arguments", nargs=-1, metavar="[PYTEST ARGUMENTS]...")
def run(
    framework: str,
    modes: str,
    ways: str,
    tests: str | None,
    device: str,
    scenario: str | None,
    list_scenarios: bool,
    rounds: int | None,
    folder: Path,
    pytest_arguments: tuple[str, ...],
) -> int:
    """Runs the suites on the FRAMEWORK that is installed here, in each mode, prints the table of the new records and
    compares them with their baselines. It installs nothing; `conformance install` does.

    \b
    conformance run torch
    conformance run torch --tests quick
    conformance run --mode graph,xla tf
    conformance run torch --ways clip.two-calls
    conformance run torch -k scaling --seed=1
    conformance run package.module:Class    an adapter or training loop of your own

    With --scenario it trains the scenario's recipes in each FRAMEWORK (by default in all installed
    ones), writes results/scenarios/NAME/FRAMEWORK-VERSION-DEVICE-MODE.json, and compares the records with the
    publication or guide that the scenario comes from.

    \b
    conformance run --list-scenarios
    conformance run --scenario sincos torch tf
    conformance run --scenario segments --rounds 20 reference
    """
    if list_scenarios:
        from conformance.scenarios import SCENARIOS

        for each in SCENARIOS.values():
            click.echo(f"{each.name:<20} {each.title}")
        return 0
    if scenario is not None:
        wanted = [word for word in (framework, *pytest_arguments) if word]
        return _scene(_named(scenario), wanted, device, modes.split(","), rounds or 0, folder)
    context = click.get_current_context()
    for name in ("rounds", "folder"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is for scenarios; name one with --scenario")
    if not framework:
        raise click.MissingParameter(param_hint="'FRAMEWORK'", param_type="argument")
    if ":" in framework:
        import_from_here()
    from conformance.runner import jobs

    adapter = adapter_file(framework)
    judged = [*dict.fromkeys(modes.split(","))] if modes else [*adapter.modes] or [""]
    if modes and not all(judged):
        raise click.UsageError(f"--mode: got {modes!r}, want names with commas between them")
    chosen = tests or ("all" if jobs.selects(pytest_arguments) else "core")
    return jobs.job(framework, judged, device, [f"--tests={chosen}", *pytest_arguments], _runs_of(framework, ways))


def _runs_of(framework: str, ways: str) -> list[tuple[str, ...]]:
    """The ways of each run."""
    if ways != "all":
        return [tuple(ways.split(",")) if ways else ()]
    return [(f"set-{number}",) for number, _ in enumerate(sets(declared(framework)), start=1)]


def import_from_here() -> None:
    """Makes modules of the current folder importable after the suite's own, here and in the processes of the run."""
    from conformance.runner import jobs

    first = [str(jobs.ROOT), str(Path.cwd())]
    sys.path[:0] = first
    os.environ["PYTHONPATH"] = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])


def _named(scenario: str) -> Scenario:
    from conformance.scenarios import SCENARIOS

    if scenario not in SCENARIOS:
        raise click.BadParameter(f"no scenario {scenario!r}: one of {', '.join(SCENARIOS)}", param_hint="--scenario")
    return SCENARIOS[scenario]


def _scene(
    scenario: Scenario, wanted: Sequence[str], device: str, modes: Sequence[str], rounds: int, folder: Path
) -> int:
    from rich.console import Console

    from conformance.scenarios.launching import launch
    from conformance.scenarios.table import draw

    for name in wanted:
        if name.startswith("-"):
            raise click.BadParameter(f"{name!r} is no framework; options stand before the frameworks")
        path_of(name)
    ended = [
        launch(scenario, name, device, mode, rounds, folder, watched)
        for name in wanted or sorted(known())
        for mode in modes
    ]
    records = [one.record for one in ended if one.record is not None]
    for one in ended:
        if one.reason:
            click.echo(one_line(f"{one.framework}: {one.reason}"), err=True)
    if records:
        draw(scenario, records, Console())
    return _status(ended, named=bool(wanted))


def _status(ended: Sequence[FrameworkResult], *, named: bool) -> int:
    broken = [one for one in ended if one.record is None and (named or not one.absent)]
    if broken or not any(one.record for one in ended):
        return 2
    return 1 if any(one.status for one in ended) else 0
