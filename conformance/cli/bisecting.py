"""`conformance bisect`: the release with which a clause began to fail, or to hold, and the draft of an issue."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.cli.options import PATH, names
from conformance.cli.specifying import clause_lines, clause_of, failed_checks
from conformance.cli.sweeping import check_suite_packages, tell_verdicts
from conformance.spec.clauses import Clause
from conformance.sweep.bisection import (
    FAILED,
    Boundary,
    CellJudge,
    CellVerdicts,
    Crossing,
    UnstableEnd,
    changed_tests,
    classify,
    cross,
    search,
)
from conformance.sweep.cell import CellFolder
from conformance.sweep.plan import (
    OF_ITS_TIME,
    CellGroup,
    SweepCell,
    SweepPlan,
    cells_of,
    check_group,
    check_release,
    releases,
)
from conformance.test_ids.inventory import id_of, inventory, node_of
from frameworks.cache_folder import cache_folder
from frameworks.installer.distributions import distribution_of, package_of, variable_of
from results.record.files import one_line, replace
from results.record.reading import TestVerdict

REPORT = "report.md"
LIMIT_S = 1200.0
"""Limit for the suite's run with one release, in seconds."""


@click.command("bisect")
@click.argument("framework", shell_complete=names)
@click.option("--good", required=True, metavar="VERSION", help="A version with which the tests pass.")
@click.option("--bad", required=True, metavar="VERSION", help="A version with which they fail, older or newer.")
@click.option(
    "--clause",
    "selected",
    required=True,
    metavar="ID",
    help="Judge the tests of this clause, or one test: CLAUSE/NAME[PARAMETERS], or pytest's id.",
)
@click.option("--package", default="", metavar="NAME", help="Package that varies; the framework's own without it.")
@click.option(
    "--with",
    "companions",
    multiple=True,
    metavar="NAME==VERSION",
    help=f'Version of a companion, or of the framework while another package varies; or "{OF_ITS_TIME}".',
)
@click.option("--mode", default="", metavar="NAME", help="Mode of the adapter; its first by default.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="Device.")
@click.option("--output", type=PATH, metavar="FOLDER", help="Folder for records and report.")
def bisection(
    framework: str,
    good: str,
    bad: str,
    selected: str,
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

    Exit status: 0, the release or a range of releases is named; 2, both ends give the same, an end cannot be judged, or
    bad usage.
    """
    clause, selection = select(selected)
    check_suite_packages()
    sys.path.insert(0, str(Path.cwd()))
    varying = str(canonicalize_name(package or package_of(framework)))
    parts = (framework, varying, good, bad, mode, device, *companions, *selection)
    path = output or cache_folder() / "bisect" / "-".join(map(_plain, parts))[:120]
    judge = CellJudge(CellFolder(path, SweepPlan("bisect", (), selection, LIMIT_S)), tell_verdicts)
    group = _group(framework, package and varying, _pins(companions), mode, device)
    return _search(_list_cells(group, varying, good, bad), judge, clause)


def _group(framework: str, package: str, pins: Mapping[str, str], mode: str, device: str) -> CellGroup:
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
    if OF_ITS_TIME in companions.values():
        raise click.UsageError(f'--with: "{OF_ITS_TIME}" is for the framework while another --package varies')
    return CellGroup(framework, (), package, framework_version, (companions,), (mode,), ((),), (device,))


def _list_cells(group: CellGroup, package: str, good: str, bad: str) -> tuple[SweepCell, ...]:
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
        check_group(group, group.modes)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    known = releases(package)
    for end in (low, high):
        check_release(package, end, known)
    inside = [version for version in known if low < version < high and not version.is_prerelease]
    versions = tuple(map(str, (low, *inside, high)))
    cells = cells_of(SweepPlan("bisect", (msgspec.structs.replace(group, versions=versions),)))
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


def _pins(companions: Sequence[str]) -> dict[str, str]:
    pins = {}
    for word in companions:
        name, _, version = word.partition("==")
        try:
            pins[str(canonicalize_name(name))] = version if version == OF_ITS_TIME else str(Version(version))
        except InvalidVersion:
            raise click.BadParameter(f"got {word!r}, want NAME==VERSION", param_hint="--with") from None
    return pins


def _plain(word: str) -> str:
    name = word.rpartition("::")[2]
    return "".join(character if character.isalnum() or character in "._" else "_" for character in name) or "own"


def _search(cells: Sequence[SweepCell], judge: CellJudge, clause: Clause) -> int:
    most = (len(cells) - 1).bit_length()
    click.echo(f"{len(cells)} releases, at most {most} of them to judge next to the ends", err=True)
    good_end, bad_end = ends = [judge.judge(cell) for cell in (cells[0], cells[-1])]
    for end in ends:
        if end.record is None:
            problem = f"{end.cell.package} {end.cell.version} cannot be judged ({end}); choose another end"
            raise click.ClickException(problem)
    tests = changed_tests(good_end, bad_end)
    if not tests:
        hint = (
            "exchange --good and --bad" if changed_tests(bad_end, good_end) else "choose other ends or another clause"
        )
        outcomes = [f"{end.cell.package} {end.cell.version} gives {end}" for end in ends]
        problem = f"no test passes with the good end and fails with the bad one: {', '.join(outcomes)}; {hint}"
        raise click.ClickException(problem)
    try:
        boundary = search(cells, judge, tests)
    except UnstableEnd as error:
        index, reason = error.args
        problem = f"{cells[index].version} gives another result when it is judged again ({reason or 'unstable'})"
        raise click.ClickException(problem) from None
    good, bad = (judge.judge(cells[index]) for index in (boundary.good, boundary.bad))
    packages = good.packages, bad.packages
    crossing = cross(good.cell, bad.cell, packages, lambda cell: classify(judge.judge(cell), tests))
    repeat = " ".join(["conformance", *map(shlex.quote, sys.argv[1:])])
    result = Bisection(clause, cells, boundary, good, bad, tests, crossing, repeat)
    path = judge.folder.path / REPORT
    replace(path, draft(result).encode())
    for line in summary(result):
        click.echo(line)
    click.echo(f"report:  {path}")
    return 0


MOST = 12
"""Largest number of tests, and of packages, that the summary lists."""


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
    cells: Sequence[SweepCell]
    boundary: Boundary
    good: CellVerdicts
    bad: CellVerdicts
    tests: Sequence[str]
    crossing: Crossing
    repeat: str

    @property
    def package(self) -> str:
        """The package that varies."""
        return self.bad.cell.package

    @property
    def fix(self) -> bool:
        """Return whether the good release is the newer one."""
        return Version(self.good.cell.version) > Version(self.bad.cell.version)

    @property
    def failures(self) -> list[TestVerdict]:
        """Verdicts of the bad release that fail and belong to the tests."""
        return [v for test, v in self.bad.verdicts.items() if test in self.tests and v.outcome in FAILED]


def summary(bisection: Bisection) -> Iterator[str]:
    """Yield the lines of the result for the terminal."""
    good, bad = bisection.good.cell, bisection.bad.cell
    older, newer = ("last bad  ", "first good") if bisection.fix else ("last good ", "first bad ")
    first, second = (bad, good) if bisection.fix else (good, bad)
    yield f"{older} {bisection.package} {first.version}{_day(first)}"
    yield f"{newer} {bisection.package} {second.version}{_day(second)}"
    if between := bisection.boundary.between:
        named = [f"{bisection.cells[index].version} ({reason})" for index, reason in between.items()]
        yield one_line(f"or one of {', '.join(named[:MOST])}, which cannot be judged", 2000)
    yield ""
    for verdict in bisection.failures[:MOST]:
        before = bisection.good.verdicts.get(verdict.test)
        outcome = "missing" if before is None else str(before.outcome)
        yield one_line(f"{verdict.test}: {outcome} -> {verdict.outcome} [{verdict.signature}] {verdict.message}")
    if len(bisection.failures) > MOST:
        yield f"and {len(bisection.failures) - MOST} more tests"
    yield ""
    yield from _describe_crossing(bisection)
    if bisection.failures:
        yield f"repeat:  {install_words(bad)} && {bisection.failures[0].repro}"
    yield f"compare: conformance compare {bisection.good.file} {bisection.bad.file}"


def _day(cell: SweepCell) -> str:
    return f" of {cell.released}" if cell.released else ""


def _describe_crossing(bisection: Bisection) -> Iterator[str]:
    crossing = bisection.crossing
    for name, (before, after) in [*crossing.differences.items()][:MOST]:
        yield f"  {name}: {before or 'missing'} in the good environment, {after or 'missing'} in the bad one"
    if len(crossing.differences) > MOST:
        yield f"  and {len(crossing.differences) - MOST} more packages"
    for cell in crossing.cells:
        yield one_line(f"  {cell.name}: {cell.side or f'not judged ({cell.reason})'}")
    yield f"guilty: {crossing.guilty or 'not one package alone'}; {crossing.why}"
    yield ""


def install_words(cell: SweepCell) -> str:
    """Return the command that installs a cell's versions."""
    versions = {f"{cell.framework.upper()}_VERSION": cell.framework_version}
    versions |= {variable_of(name): version for name, version in cell.packages.items()}
    assignments = [f"{name}={version}" for name, version in versions.items() if version]
    return " ".join([*assignments, "python -m conformance install", cell.framework])


def draft(bisection: Bisection) -> str:
    """Return a report for the issue tracker of the guilty package."""
    return "\n".join(_draft(bisection)).rstrip() + "\n"


def _draft(bisection: Bisection) -> Iterator[str]:
    good, bad = bisection.good.cell, bisection.bad.cell
    guilty = bisection.crossing.guilty or bisection.package
    what = f"works since {good.version}" if bisection.fix else f"fails since {bad.version}"
    subject = (
        f"{bisection.package} {what}" if guilty == bisection.package else f"{guilty} with {bisection.package}: {what}"
    )
    yield from (f"# {subject}: {' '.join(bisection.clause.requirement.split()).rstrip('.')}", "")
    yield f"- good: {bisection.package} {good.version}{_day(good)}"
    yield f"- bad: {bisection.package} {bad.version}{_day(bad)}"
    for index, reason in bisection.boundary.between.items():
        yield one_line(f"- {bisection.cells[index].version} cannot be judged: {reason}")
    yield f"- guilty: {bisection.crossing.guilty or 'not one package alone'} ({bisection.crossing.why})"
    yield from (one_line(f"- {cell.name}: {cell.side or 'not judged'}") for cell in bisection.crossing.cells)
    yield from ("", "## To reproduce", "", "```sh", f"{install_words(bad)}")
    yield from (f"{verdict.repro}" for verdict in bisection.failures[:1])
    yield from ("```", "", f"Found by `{bisection.repeat}`.", "")
    yield from clause_lines(bisection.clause)
    yield from failed_checks(bisection.failures)
    if unchecked := [v for v in bisection.failures if all(check.passed for check in v.checks)]:
        yield from ("## Messages", "")
        yield from (one_line(f"- `{verdict.test}`: {verdict.message}") for verdict in unchecked[:MOST])
        yield ""
    yield from ("## Versions", "", "| package | good | bad |", "|---|---|---|")
    packages = bisection.crossing.differences
    own = package_of(bisection.bad.cell.framework)
    if own and own not in packages:
        yield f"| {own} | {bisection.good.cell.framework_version} | {bisection.bad.cell.framework_version} |"
    yield from (f"| {name} | {before or '-'} | {after or '-'} |" for name, (before, after) in packages.items())
    if bisection.bad.record is not None:
        series, environment = bisection.bad.record.series, bisection.bad.record.variant.environment
        yield from ("", f"Python {environment.get('python', '')}, {series.device_kind}, mode {series.mode}.")
