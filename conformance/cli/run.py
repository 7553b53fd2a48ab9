"""`conformance run`: judges a framework, or trains a scenario in it. `conformance judge-model`: judges models."""

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import click

from conformance.cli.options import PATH, completing, names, put, show_progress
from conformance.runner.selection import NAMES
from frameworks.registry import DEVICE_HELP, adapter_file
from frameworks.ways import load_ways, sets
from results.record.files import one_line

PYTEST_OPTIONS = ("--profile", "--record", "--seed", "--way")
"""Options of the suite's plugin. If the value is a separate argument, pytest takes it for a path to tests."""

LIBRARY = "transformers"
"""The library whose models `judge-model --all` judges."""


def _scenarios() -> Iterable[str]:
    from conformance.scenarios.definitions import SCENARIOS  # takes NumPy

    return SCENARIOS


class RunCommand(click.Command):
    """A command whose own options may stand anywhere; all other arguments after FRAMEWORK are pytest's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse this command's options first, those after a `--` excepted: click stops at the first other argument."""
        end = args.index("--") if "--" in args else len(args)
        options = {name: option for option in self.params if isinstance(option, click.Option) for name in option.opts}
        own: list[str] = []
        others: list[str] = []
        arguments = iter(args[:end])
        for argument in arguments:
            name, equals, _ = argument.partition("=")
            if name in options:
                has_value = not (equals or options[name].is_flag)
                own += [argument, *islice(arguments, int(has_value))]
            elif name in PYTEST_OPTIONS and not equals:
                others.append(f"{argument}={next(arguments, '')}")
            else:
                others.append(argument)
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
@click.option("--rounds", type=click.IntRange(min=2), metavar="N", help="End the scenario after N rounds.")
@click.option(
    "--fingerprints",
    is_flag=True,
    help="Instead of the tests, record what every public call of the installed packages does.",
)
@click.argument("pytest_arguments", nargs=-1, metavar="[PYTEST ARGUMENTS]...")
def run(
    framework: str,
    modes: str,
    ways: str,
    tests: str | None,
    device: str,
    scenario: str | None,
    rounds: int | None,
    fingerprints: bool,
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

    With --scenario it trains the scenario's recipes in FRAMEWORK, writes
    results/scenarios/NAME/FRAMEWORK-VERSION-DEVICE-MODE.json.gz, and shows the scenario's records next to the
    figures of the publication or guide that it comes from.

    \b
    conformance run torch --scenario sincos
    conformance run reference --scenario segments --rounds 20

    With --fingerprints it writes PACKAGE-VERSION.fingerprint.gz for the framework and each of its libraries to
    results/fingerprints, and compares them with the committed ones. A fingerprint has no verdict: calls are equal in
    two versions, or not.

    \b
    conformance run torch --fingerprints
    conformance run tf --fingerprints keras
    """
    if scenario is not None:
        if not framework or pytest_arguments or ways:
            raise click.UsageError("a scenario takes one FRAMEWORK, and neither --ways nor options of pytest")
        return _train(scenario, framework, device, modes, rounds or 0)
    if fingerprints:
        if ways or modes or tests:
            raise click.UsageError(
                "--fingerprints takes one FRAMEWORK and names of packages, and no tests, modes or ways"
            )
        return _make_fingerprints(framework, pytest_arguments)
    if rounds is not None:
        raise click.UsageError("--rounds is for scenarios; name one with --scenario")
    if not framework:
        raise click.MissingParameter(param_hint="'FRAMEWORK'", param_type="argument")
    if ":" in framework:
        import_from_here()
    from conformance.runner import jobs

    adapter = adapter_file(framework)
    chosen_modes = [*dict.fromkeys(modes.split(","))] if modes else [*adapter.modes] or [""]
    if modes and not all(chosen_modes):
        raise click.UsageError(f"--mode: got {modes!r}, want names with commas between them")
    selection = tests or ("all" if jobs.selects(pytest_arguments) else "core")
    arguments = [f"--tests={selection}", *pytest_arguments]
    return jobs.job(framework, chosen_modes, device, arguments, _split_into_runs(framework, ways))


def _make_fingerprints(framework: str, names: Sequence[str]) -> int:
    """Write the fingerprints of installed packages of a framework, and compare them with the committed ones."""
    from conformance.fingerprints.cases import package_files
    from conformance.fingerprints.run import make_fingerprints
    from conformance.runner import machine
    from conformance.runner.subprocesses import VARIABLES
    from results.compare import fingerprints as prints
    from results.compare.fingerprints import list_fingerprints, pair_fingerprints
    from results.record.folders import SHIPPED, WRITTEN

    files = package_files(framework)
    unknown = [name for name in names if name not in files] if files else [framework]
    if unknown:
        raise click.UsageError(f"--fingerprints: got {unknown[0]!r}, want {' or '.join(files) or 'another framework'}")
    chosen = [path for name, path in files.items() if name in names or not names]
    try:
        os.environ.update(VARIABLES)
        facts = (machine.packages(), [*machine.instruction_sets()])
        paths = make_fingerprints(chosen, WRITTEN / "fingerprints", *facts, lambda line: click.echo(line, err=True))
    except RuntimeError as error:
        raise click.ClickException(one_line(str(error))) from None
    if not paths:
        raise click.ClickException(f"{framework}: no package is installed here; `conformance install {framework}` does")
    comparisons = pair_fingerprints(list_fingerprints([SHIPPED / "baselines"]), paths)
    click.echo(prints.to_text(comparisons), nl=False)
    return max((comparison.exit_status for comparison in comparisons), default=0)


def _split_into_runs(framework: str, ways: str) -> list[tuple[str, ...]]:
    """Return the ways of each run, for the value of --ways."""
    if ways != "all":
        return [tuple(ways.split(",")) if ways else ()]
    return [(f"set-{number}",) for number, _ in enumerate(sets(load_ways(framework)), start=1)]


def import_from_here() -> None:
    """Make modules of the current folder importable after the suite's own, here and in the processes of the run."""
    from conformance.runner import jobs

    folders = [str(jobs.ROOT), str(Path.cwd())]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])


def _train(name: str, framework: str, device: str, mode: str, rounds: int) -> int:
    """Train a scenario for at most `rounds` rounds, 0 for all, and print its records; return the exit status."""
    from conformance.runner.identity import name_of
    from conformance.scenarios import definitions
    from conformance.scenarios.definitions import SCENARIOS
    from conformance.scenarios.scenario import NoPart, load_framework, run_scenario
    from frameworks.contract import MissingDevice, Unsupported
    from results.record.folders import list_records
    from results.record.reading import load, write

    if name not in SCENARIOS:
        raise click.BadParameter(f"no scenario {name!r}: one of {', '.join(SCENARIOS)}", param_hint="--scenario")
    if ":" in framework:
        import_from_here()
    scenario, folder = SCENARIOS[name], definitions.FOLDER / name
    try:
        subject = load_framework(scenario, framework, device, mode)
        folder.mkdir(parents=True, exist_ok=True)
        record = run_scenario(scenario, framework, subject, rounds, show_progress)
    except ModuleNotFoundError as error:
        remedy = "`conformance doctor` names what to install"
        raise click.ClickException(f"{framework}: {error.name} is missing: {remedy}") from None
    except (MissingDevice, NoPart, Unsupported, ValueError) as error:
        raise click.ClickException(one_line(f"{framework}: {error}")) from None
    write(folder / f"{name_of(record.series, subject.version())}.json.gz", record)
    records = [load(path) for path in list_records(folder)]
    click.echo(f"{scenario.title}\n\n{definitions.markdown(scenario, records)}")
    return int(any(verdict.outcome.bad for verdict in record.verdicts))


@click.command("judge-model")
@click.argument("model", required=False, default="", metavar="[MODEL]")
@click.option("--all", "library", type=click.Choice([LIBRARY]), help="Judge every head class of this library.")
@click.option("--only", metavar="A,B", help="With --all: classes whose name has one of these parts.")
@click.option("--record", "path", type=PATH, metavar="FILE", help="Write the record to FILE (NAME.json or .json.gz).")
@click.option("--output", type=PATH, metavar="FILE", help="Write the table of --all to FILE instead of printing it.")
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of processes.")
@click.option("--limit", type=click.IntRange(1), default=60, show_default=True, help="Whole seconds for a model.")
def judge_model(
    model: str, library: str | None, only: str | None, path: Path | None, output: Path | None, jobs: int, limit: int
) -> int:
    """Check that gradient accumulation, recomputation, precision scopes and resuming leave the training of MODEL as it
    is. MODEL is transformers:CLASS, built from a tiny random configuration and trained by its Trainer, or
    PACKAGE.MODULE:FACTORY, a callable that returns a torch.nn.Module or (module, batch).

    \b
    conformance judge-model transformers:BertForSequenceClassification
    conformance judge-model my_package.models:make
    conformance judge-model --all transformers --record new.json.gz
    conformance compare results/heads/transformers-5.24.0.json.gz new.json.gz

    With --all it judges every head class of the installed transformers and groups failures by cause.

    Exit status: 0, no check failed but as a finding describes; 1, one did; 2, the model cannot be judged.
    """
    if bool(model) == bool(library):
        raise click.UsageError("name a MODEL, or give --all transformers")
    if model and (only or output):
        raise click.UsageError("--only and --output are for --all")
    if model and not all(model.partition(":")):
        raise click.BadParameter(
            f"got {model!r}, want transformers:CLASS or PACKAGE.MODULE:FACTORY", param_hint="MODEL"
        )
    from conformance.models import judging
    from results.record.reading import write

    import_from_here()
    if model:
        request, jobs = judging.ModelRequest(model, formats=("bfloat16", "float16"), limit_s=limit), 1
    else:
        request = judging.ModelRequest(only=tuple(only.split(",")) if only else ("",), limit_s=limit)
    try:
        record = judging.judge(request, jobs)
    except judging.CannotJudge as error:
        raise click.ClickException(one_line(str(error))) from None
    if model and (problem := judging.problem_of(record)):
        raise click.ClickException(one_line(f"{model}: {problem}"))
    if path is not None:
        write(path, record)
    lines = judging.show_model(record) if model else judging.table(record)
    put("".join(f"{line}\n" for line in lines), None if model else output)
    return int(any(verdict.outcome.bad for verdict in record.verdicts))
