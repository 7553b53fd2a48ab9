"""`conformance bisect`: the release with which a clause began to fail, or to hold, and the draft of an issue."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.cli.options import PATH, names
from conformance.cli.spec import checks_section, clause_of, clause_section
from conformance.cli.sweep import check_suite_packages, tell_verdicts
from conformance.spec.clauses import Clause
from conformance.sweep import bisection, plan
from conformance.sweep.cell import CellFolder
from conformance.test_ids import id_of, inventory, node_of
from frameworks.cache_folder import cache_folder
from frameworks.installer.distributions import distribution_of, package_of, variable_of
from results.record.files import one_line, replace
from results.record.reading import TestVerdict

REPORT = "report.md"
"""Name of the draft of an issue in the folder of a bisection."""

LIMIT_S = 1200.0
"""Limit for the suite's run with one release, in seconds."""

MAX_LISTED = 12
"""Largest number of tests, and of packages, that the summary lists."""

LINE_LIMIT = 2000
"""Largest number of characters of a line that lists releases."""


@dataclass(frozen=True)
class Bisection:
    """A bisection and its result.

    Attributes:
        cells: all releases from the good end to the bad one.
        good, bad: the two releases next to the boundary.
        tests: tests that pass at the good end and fail at the bad one.
        repeat: the command that repeats the bisection.
    """

    clause: Clause
    cells: Sequence[plan.SweepCell]
    boundary: bisection.Boundary
    good: bisection.CellVerdicts
    bad: bisection.CellVerdicts
    tests: Sequence[str]
    crossing: bisection.Crossing
    repeat: str

    @property
    def is_fix(self) -> bool:
        """Whether the good release is the newer one."""
        return Version(self.good.cell.version) > Version(self.bad.cell.version)

    @property
    def failures(self) -> list[TestVerdict]:
        """Verdicts of the bad release that fail and belong to the tests."""
        verdicts = (one for test, one in self.bad.verdicts.items() if test in self.tests)
        return [verdict for verdict in verdicts if verdict.outcome in bisection.FAILED]


@click.command("bisect")
@click.argument("framework", shell_complete=names)
@click.option("--good", required=True, metavar="VERSION", help="A version with which the tests pass.")
@click.option("--bad", required=True, metavar="VERSION", help="A version with which they fail, older or newer.")
@click.option(
    "--clause",
    "selected",
    metavar="ID",
    help="Judge the tests of this clause, or one test: CLAUSE/NAME[PARAMETERS], or pytest's id.",
)
@click.option(
    "--run", "program", metavar="COMMAND", help='Judge the curve of a program of yours instead: "python train.py".'
)
@click.option("--package", default="", metavar="NAME", help="Package that varies; the framework's own without it.")
@click.option(
    "--with",
    "companions",
    multiple=True,
    metavar="NAME==VERSION",
    help=f'Version of a companion, or of the framework while another package varies; or "{plan.OF_ITS_TIME}".',
)
@click.option("--mode", default="", metavar="NAME", help="Mode of the adapter; its first by default.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="Device.")
@click.option("--output", type=PATH, metavar="FOLDER", help="Folder for records and report.")
def bisect_command(
    framework: str,
    good: str,
    bad: str,
    selected: str | None,
    program: str | None,
    package: str,
    companions: tuple[str, ...],
    mode: str,
    device: str,
    output: Path | None,
) -> int:
    """Find the release of FRAMEWORK, or of another PACKAGE, with which a clause or a test began to fail, or to pass if
    the good version is the newer one. Every judged release gets an environment of its own, with companions of its time;
    releases that cannot be judged are skipped with a reason. At the end good and bad environments are crossed, to name
    the guilty package. A release that has a record is not judged again, so an interrupted bisection continues.

    \b
    conformance bisect jax --good 0.9.2 --bad 0.6.2 --clause accumulation.keeps-precision
    conformance bisect tf --package keras --good 3.9.0 --bad 3.8.0 --clause scaling.automaton
    conformance bisect torch --mode accelerate --package accelerate --good 1.12.0 --bad 1.15.0 --clause ID
    conformance bisect torch --good 2.12.1 --bad 2.13.0 --run "python train.py"

    Exit status: 0, the release or a range of releases is named; 2, both ends give the same, an end cannot be judged, or
    bad usage.
    """
    if (selected is None) == (program is None):
        raise click.UsageError("name either --clause ID or --run COMMAND")
    command = _split(program) if program is not None else []
    clause, selection = select(selected) if selected is not None else (None, (*command,))
    check_suite_packages()
    sys.path.insert(0, str(Path.cwd()))
    varying = str(canonicalize_name(package or package_of(framework)))
    parts = (framework, varying, good, bad, mode, device, *companions, *selection)
    path = output or cache_folder() / "bisect" / "-".join(map(_file_name, parts))[:120]
    group = _make_group(framework, package and varying, _parse_pins(companions), mode, device)
    cells = _list_cells(group, varying, good, bad)
    click.echo(
        f"{len(cells)} releases, at most {(len(cells) - 1).bit_length()} of them to judge next to the ends", err=True
    )
    if clause is None:
        tell = partial(click.echo, err=True)
        for line in bisect_program(cells, bisection.ProgramJudge(path.resolve(), command, LIMIT_S, tell)):
            click.echo(line)
        return 0
    judge = bisection.CellJudge(CellFolder(path, plan.SweepPlan("bisect", (), selection, LIMIT_S)), tell_verdicts)
    result = _bisect(cells, judge, clause)
    report = judge.folder.path / REPORT
    replace(report, draft(result).encode())
    for line in summary(result):
        click.echo(line)
    click.echo(f"report:  {report}")
    return 0


def _split(program: str) -> list[str]:
    """Return a command as a shell splits it.

    Raises:
        click.UsageError: it is empty, or a quotation is not closed.
    """
    try:
        command = shlex.split(program)
    except ValueError as error:
        raise click.UsageError(f"--run: {error}") from None
    if not command:
        raise click.UsageError('--run needs a command, such as "python train.py"')
    return command


def _make_group(framework: str, package: str, pins: Mapping[str, str], mode: str, device: str) -> plan.CellGroup:
    """Return the cells of a framework without versions.

    Args:
        package: the package that varies, if it is not the framework's own; else "".
        pins: versions by normalized name.
    """
    distribution = distribution_of(framework)
    own = {framework, *(map(str, map(canonicalize_name, distribution.packages)) if distribution else ())}
    own -= set() if package else {str(canonicalize_name(package_of(framework)))}
    framework_version = next((version for name, version in pins.items() if name in own), "")
    companions = {name: version for name, version in pins.items() if name not in own}
    if plan.OF_ITS_TIME in companions.values():
        raise click.UsageError(f'--with: "{plan.OF_ITS_TIME}" is for the framework while another --package varies')
    return plan.CellGroup(framework, (), package, framework_version, (companions,), (mode,), ((),), (device,))


def _list_cells(group: plan.CellGroup, package: str, good: str, bad: str) -> tuple[plan.SweepCell, ...]:
    """Return the cells of all releases of a package from the good end to the bad one.

    Raises:
        click.UsageError: an end is not a version, both ends are equal, or there is no such mode or device.
        RecordError: no index has the package, or the version of an end.
    """
    try:
        ends = Version(good), Version(bad)
    except InvalidVersion as error:
        raise click.UsageError(f"{error}; write one such as 2.6.0") from None
    low, high = sorted(ends)
    if low == high:
        raise click.UsageError(f"--good and --bad are the same version, {low}; name an older and a newer one")
    if not package:
        raise click.UsageError(f"nothing is installed for {group.framework}; name the package that varies")
    try:
        plan.check_group(group, group.modes)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    known = plan.releases(package)
    for end in (low, high):
        plan.check_release(package, end, known)
    inside = [version for version in known if low < version < high and not version.is_prerelease]
    versions = tuple(map(str, (low, *inside, high)))
    cells = plan.cells_of(plan.SweepPlan("bisect", (msgspec.structs.replace(group, versions=versions),)))
    return cells if ends == (low, high) else cells[::-1]


def select(selected: str) -> tuple[Clause, tuple[str, ...]]:
    """Return the clause, and pytest's arguments that select the clause's tests or the one test.

    Raises:
        click.UsageError: there is no such clause or test.
    """
    if "/" not in selected:
        clause = clause_of(selected)
        codes = [code for code in inventory().values() if code.clause == clause.id]
        if not codes:
            raise click.UsageError(f"no test of a suite names {clause.id}")
        return clause, tuple(sorted(f"conformance/suites/{code.file}::{code.function}" for code in codes))
    test = id_of(selected) if "::" in selected else selected
    node = node_of(test)
    if node is None:
        raise click.UsageError(f"no test {selected!r}; write CLAUSE/NAME[PARAMETERS], as a record has it")
    return clause_of(test.partition("/")[0]), (node,)


def _parse_pins(companions: Sequence[str]) -> dict[str, str]:
    """Return versions by normalized name, of texts NAME==VERSION; refuse other texts."""
    pins = {}
    for text in companions:
        name, _, version = text.partition("==")
        try:
            pins[str(canonicalize_name(name))] = version if version == plan.OF_ITS_TIME else str(Version(version))
        except InvalidVersion:
            raise click.BadParameter(f"got {text!r}, want NAME==VERSION", param_hint="--with") from None
    return pins


def _file_name(text: str) -> str:
    """Return a text, of a pytest id its last part, with other characters than letters, digits, "." and "_" replaced."""
    name = text.rpartition("::")[2]
    return "".join(character if character.isalnum() or character in "._" else "_" for character in name) or "own"


def _bisect(cells: Sequence[plan.SweepCell], judge: bisection.CellJudge, clause: Clause) -> Bisection:
    """Find the boundary between good and bad releases, and cross the environments next to it."""
    tests = _judge_ends(judge.judge(cells[0]), judge.judge(cells[-1]))
    try:
        boundary = bisection.search(cells, judge, tests)
    except bisection.UnstableEnd as error:
        index, reason = error.args
        problem = f"{cells[index].version} gives another result when it is judged again ({reason or 'unstable'})"
        raise click.ClickException(problem) from None
    good, bad = (judge.judge(cells[index]) for index in (boundary.good, boundary.bad))
    packages = good.packages, bad.packages
    crossing = bisection.cross(good.cell, bad.cell, packages, lambda cell: bisection.classify(judge.judge(cell), tests))
    repeat = " ".join(["conformance", *map(shlex.quote, sys.argv[1:])])
    return Bisection(clause, cells, boundary, good, bad, tests, crossing, repeat)


def bisect_program(cells: Sequence[plan.SweepCell], judge: bisection.ProgramJudge) -> Iterator[str]:
    """Find the release with which a program's curve changed, and yield the lines of the result.

    Raises:
        click.ClickException: an end cannot be judged, both ends train the same, or an end is not stable.
    """
    for cell, want in ((cells[0], "good"), (cells[-1], "bad")):
        side, reason = judge.ask(cell)
        if side != want:
            remedy = "see its log" if not side else "both ends train the same; choose other ends"
            raise click.ClickException(f"{cell.release}: {reason}; {remedy}")
    try:
        boundary = bisection.bisect(
            len(cells), lambda index: judge.ask(cells[index]), lambda index: judge.confirm(cells[index])
        )
    except bisection.UnstableEnd as error:
        index, reason = error.args
        raise click.ClickException(
            f"{cells[index].release} gives another result when it runs again: {reason}"
        ) from None
    good, bad = cells[boundary.good], cells[boundary.bad]
    yield from (f"last good  {good.release}", f"first bad  {bad.release}")
    yield from (f"not judged {cells[index].release}: {reason}" for index, reason in boundary.between.items())
    crossing = bisection.cross(good, bad, (judge.versions(good), judge.versions(bad)), judge.ask)
    yield from _describe_crossing(crossing)
    files = (judge.folder / f"{cell.name}.jsonl" for cell in (good, bad))
    yield f"compare: conformance curves {' '.join(map(shlex.quote, map(str, files)))}"


def _judge_ends(good: bisection.CellVerdicts, bad: bisection.CellVerdicts) -> list[str]:
    """Return the tests that pass at the good end and fail at the bad one, at least one."""
    for end in (good, bad):
        if end.record is None:
            problem = f"{end.cell.package} {end.cell.version} cannot be judged ({end}); choose another end"
            raise click.ClickException(problem)
    if tests := bisection.changed_tests(good, bad):
        return tests
    hint = "exchange --good and --bad" if bisection.changed_tests(bad, good) else "choose other ends or another clause"
    outcomes = [f"{end.cell.package} {end.cell.version} gives {end}" for end in (good, bad)]
    problem = f"no test passes with the good end and fails with the bad one: {', '.join(outcomes)}; {hint}"
    raise click.ClickException(problem)


def summary(result: Bisection) -> Iterator[str]:
    """Yield the lines of the result for the terminal."""
    good, bad = result.good.cell, result.bad.cell
    if result.is_fix:
        yield from (f"last bad   {bad.release}", f"first good {good.release}")
    else:
        yield from (f"last good  {good.release}", f"first bad  {bad.release}")
    if between := result.boundary.between:
        named = [f"{result.cells[index].version} ({reason})" for index, reason in between.items()]
        yield one_line(f"or one of {', '.join(named[:MAX_LISTED])}, which cannot be judged", LINE_LIMIT)
    yield ""
    for verdict in result.failures[:MAX_LISTED]:
        before = result.good.verdicts.get(verdict.test)
        outcome = "missing" if before is None else str(before.outcome)
        yield one_line(f"{verdict.test}: {outcome} -> {verdict.outcome} [{verdict.signature}] {verdict.message}")
    if len(result.failures) > MAX_LISTED:
        yield f"and {len(result.failures) - MAX_LISTED} more tests"
    yield ""
    yield from _describe_crossing(result.crossing)
    if result.failures:
        yield f"repeat:  {install_command(bad)} && {result.failures[0].repro}"
    yield f"compare: conformance compare {result.good.file} {result.bad.file}"


def _describe_crossing(crossing: bisection.Crossing) -> Iterator[str]:
    for name, (before, after) in [*crossing.differences.items()][:MAX_LISTED]:
        yield f"  {name}: {before or 'missing'} in the good environment, {after or 'missing'} in the bad one"
    if len(crossing.differences) > MAX_LISTED:
        yield f"  and {len(crossing.differences) - MAX_LISTED} more packages"
    for cell in crossing.cells:
        yield one_line(f"  {cell.name}: {cell.side or f'not judged ({cell.reason})'}")
    yield f"guilty: {crossing.guilty or 'not one package alone'}; {crossing.why}"
    yield ""


def install_command(cell: plan.SweepCell) -> str:
    """Return the command that installs a cell's versions."""
    versions = {f"{cell.framework.upper()}_VERSION": cell.framework_version}
    versions |= {variable_of(name): version for name, version in cell.packages.items()}
    assignments = [f"{name}={version}" for name, version in versions.items() if version]
    return " ".join([*assignments, "python -m conformance install", cell.framework])


def draft(result: Bisection) -> str:
    """Return an issue for the tracker of the guilty package, as Markdown."""
    return "\n".join(_draft_lines(result)).rstrip() + "\n"


def _draft_lines(result: Bisection) -> Iterator[str]:
    good, bad = result.good.cell, result.bad.cell
    package, guilty = bad.package, result.crossing.guilty or bad.package
    change = f"works since {good.version}" if result.is_fix else f"fails since {bad.version}"
    subject = f"{package} {change}" if guilty == package else f"{guilty} with {package}: {change}"
    yield from (f"# {subject}: {' '.join(result.clause.requirement.split()).rstrip('.')}", "")
    yield from (f"- good: {good.release}", f"- bad: {bad.release}")
    for index, reason in result.boundary.between.items():
        yield one_line(f"- {result.cells[index].version} cannot be judged: {reason}")
    yield f"- guilty: {result.crossing.guilty or 'not one package alone'} ({result.crossing.why})"
    yield from (one_line(f"- {cell.name}: {cell.side or 'not judged'}") for cell in result.crossing.cells)
    yield from ("", "## To reproduce", "", "```sh", install_command(bad))
    yield from (verdict.repro for verdict in result.failures[:1])
    yield from ("```", "", f"Found by `{result.repeat}`.", "")
    yield from clause_section(result.clause)
    yield from checks_section(result.failures)
    if unchecked := [one for one in result.failures if all(check.passed for check in one.checks)]:
        yield from ("## Messages", "")
        yield from (one_line(f"- `{verdict.test}`: {verdict.message}") for verdict in unchecked[:MAX_LISTED])
        yield ""
    yield from ("## Versions", "", "| package | good | bad |", "|---|---|---|")
    packages = result.crossing.differences
    own = package_of(result.bad.cell.framework)
    if own and own not in packages:
        yield f"| {own} | {result.good.cell.framework_version} | {result.bad.cell.framework_version} |"
    yield from (f"| {name} | {before or '-'} | {after or '-'} |" for name, (before, after) in packages.items())
    if result.bad.record is not None:
        series, environment = result.bad.record.series, result.bad.record.variant.environment
        yield from ("", f"Python {environment.get('python', '')}, {series.device_kind}, mode {series.mode}.")
