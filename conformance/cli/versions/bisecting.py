"""`conformance bisect`: the release of a package with which a clause began to fail, or to hold."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.cli.options import names
from conformance.cli.specifying import clause_ids, clause_of
from conformance.cli.versions.bisection_report import Bisection, draft, summary
from conformance.cli.versions.suite_folder import SuiteFolder
from conformance.runner.adapter_info import check_mode
from conformance.spec.clauses import Clause
from conformance.sweep.bisect import State, StateAnswer, UnstableEnd, bisect
from conformance.sweep.cells import SweepCell, cells_of
from conformance.sweep.crossing import Crossing, Side, cross
from conformance.sweep.driver import SweepSettings
from conformance.sweep.index import PackageIndex
from conformance.sweep.judging import CellJudge, JudgedCell, answer, changed
from conformance.sweep.known_names import check_companions, check_device
from conformance.sweep.plan import OF_ITS_TIME, CellGroup, SweepPlan
from conformance.sweep.versions import check_release
from conformance.test_ids.inventory import id_of, inventory, node_of
from frameworks.cache_folder import cache_folder
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import Lock, package_of
from results.record.files import RecordError, one_line, replace

REPORT = "report.md"


@click.command("bisect")
@click.argument("framework", shell_complete=names)
@click.option("--good", required=True, metavar="VERSION", help="A version with which the tests pass.")
@click.option("--bad", required=True, metavar="VERSION", help="A version with which they fail.")
@click.option("--clause", "clause_id", metavar="ID", shell_complete=clause_ids, help="Judge the tests of this clause.")
@click.option("--test", "test_id", metavar="ID", help="Judge this test: CLAUSE/NAME[PARAMETERS], or pytest's id.")
@click.option("--find-fix", is_flag=True, help="The good version is the newer one.")
@click.option("--package", default="", metavar="NAME", help="Package that varies; the framework's own without it.")
@click.option(
    "--framework-version",
    default="",
    metavar="VERSION",
    help=f'Of the framework while another package varies: a version, or "{OF_ITS_TIME}"; by default the pinned one.',
)
@click.option(
    "--with", "companions", multiple=True, metavar="NAME==VERSION", help="Version of a companion (repeatable)."
)
@click.option("--mode", default="", metavar="NAME", help="Mode of the adapter; its first by default.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="Device.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), metavar="N", help="Seed of the runs."
)
@click.option(
    "--limit", default=1200, show_default=True, type=click.IntRange(min=1), metavar="SECONDS", help="Of a release."
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Processes for each release.")
@click.option("--once", is_flag=True, help="Repeat no failure, and judge the boundary once.")
@click.option(
    "--suite-from",
    type=SuiteFolder(),
    metavar="FOLDER",
    help="site-packages with the suite's packages, which environments then need not install.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="For records and report."
)
def bisection(
    framework: str,
    good: str,
    bad: str,
    clause_id: str | None,
    test_id: str | None,
    find_fix: bool,
    package: str,
    framework_version: str,
    companions: tuple[str, ...],
    mode: str,
    device: str,
    seed: int,
    limit: int,
    workers: int,
    once: bool,
    suite_from: Path | None,
    folder: Path | None,
) -> int:
    """Find the release of FRAMEWORK, or of another PACKAGE, with which a clause or a test began to fail, or, with
    --find-fix, to pass. Every judged release gets an environment of its own, with companions of its time; releases that
    cannot be judged are skipped with a reason. At the end good and bad environments are crossed, to name the guilty
    package. Environments and verdicts are cached: an interrupted bisection continues.

    \b
    conformance bisect jax --good 0.9.2 --bad 0.6.2 --find-fix --clause accumulation.keeps-precision
    conformance bisect tf --package keras --good 3.9.0 --bad 3.8.0 --find-fix --clause scaling.automaton
    conformance bisect torch --mode accelerate --package accelerate --good 1.12.0 --bad 1.15.0 --test ID

    Exit status: 0, the release or a range of releases is named; 2, both ends give the same, an end cannot be judged, or
    bad usage.
    """
    clause, selection = selected(clause_id, test_id)
    sys.path.insert(0, str(Path.cwd()))
    asked = BisectedRange(framework, good, bad, find_fix, package, framework_version, _pins(companions), mode, device)
    words = (framework, asked.varying, good, bad, mode, device, framework_version, *companions, *selection)
    folder = folder or cache_folder() / "bisect" / "-".join(map(_plain, words))[:120]
    cells = asked.cells(PackageIndex())
    plan = SweepPlan("bisect", (), selection, float(limit), seed, repeat=not once)
    beneath = "" if suite_from is None else str(suite_from.absolute())
    settings = SweepSettings(folder, workers, beneath, path=str(Path.cwd()))
    judge = CellJudge(plan, settings, _tell)
    repeat = " ".join(["conformance", *map(shlex.quote, sys.argv[1:])])
    return _search(cells, judge, clause, asked, repeat, once=once)


@dataclass(frozen=True)
class BisectedRange:
    """The releases between two ends, the framework and its mode.

    Attributes:
        package: that varies; "" for the framework's own.
        framework_version: while another package varies.
        companions: versions by normalized name.
    """

    framework: str
    good: str
    bad: str
    fix: bool
    package: str
    framework_version: str
    companions: dict[str, str]
    mode: str
    device: str

    @property
    def varying(self) -> str:
        """The package that varies, by its normalized name."""
        return str(canonicalize_name(self.package or package_of(self.framework)))

    def cells(self, index: PackageIndex) -> tuple[SweepCell, ...]:
        """The cells of all releases between the ends, oldest first.

        Raises:
            click.UsageError: the ends are no versions, or the wrong way round, or there is no such mode or device.
            RecordError: no index has the package, or an end.
        """
        first, last = (self.bad, self.good) if self.fix else (self.good, self.bad)
        try:
            low, high = Version(first), Version(last)
        except InvalidVersion as error:
            raise click.UsageError(f"{error}; write one such as 2.6.0") from None
        if low == high:
            raise click.UsageError(f"--good and --bad are the same version, {low}; name an older and a newer one")
        if low > high:
            hint = "without --find-fix" if self.fix else "with --find-fix"
            raise click.UsageError(f"{first} is not older than {last}; exchange them, or search {hint}")
        if not self.varying:
            raise click.UsageError(f"nothing is installed for {self.framework}; name the package that varies")
        if self.framework_version and self.varying == canonicalize_name(package_of(self.framework)):
            raise click.UsageError("--framework-version: the framework itself varies; name another --package")
        self._check_names()
        try:
            releases = index.releases(self.varying)
        except Unavailable as refusal:
            raise RecordError(
                self.varying, str(refusal), "run the command again, or name a package that an index has"
            ) from None
        for end in (low, high):
            check_release(self.varying, end, releases)
        inside = [each for each in releases if low <= each <= high]
        inside = [each for each in inside if not each.is_prerelease or each in (low, high)]
        group = CellGroup(
            self.framework,
            tuple(map(str, inside)),
            self.package and self.varying,
            self.framework_version,
            (self.companions,),
            (self.mode,),
            ((),),
            (self.device,),
        )
        return cells_of(SweepPlan("bisect", (group,)), index)

    def _check_names(self) -> None:
        try:
            check_mode(self.framework, self.mode)
            check_device(self.framework, self.device)
            check_companions(self.framework, self.varying, [*self.companions])
            if self.framework_version not in ("", OF_ITS_TIME):
                Version(self.framework_version)
        except InvalidVersion:
            want = f'want a version or "{OF_ITS_TIME}"'
            raise click.UsageError(f"--framework-version: got {self.framework_version!r}, {want}") from None
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def selected(clause_id: str | None, test_id: str | None) -> tuple[Clause, tuple[str, ...]]:
    """The clause, and words for pytest that select its tests, or one."""
    if (clause_id is None) == (test_id is None):
        raise click.UsageError("name either --clause or --test")
    if clause_id is not None:
        clause = clause_of(clause_id)
        nodes = [
            f"conformance/suites/{code.file}::{code.function}"
            for code in inventory().values()
            if code.clause == clause.id
        ]
        if not nodes:
            raise click.UsageError(f"no test of a suite names {clause.id}")
        return clause, tuple(sorted(nodes))
    test = id_of(str(test_id)) if "::" in str(test_id) else str(test_id)
    node = node_of(test)
    if node is None:
        raise click.UsageError(f"no test {test_id!r}; write CLAUSE/NAME[PARAMETERS], as a record has it")
    return clause_of(test.partition("/")[0]), (node,)


def _pins(companions: Sequence[str]) -> dict[str, str]:
    pins = {}
    for word in companions:
        name, _, version = word.partition("==")
        try:
            pins[str(canonicalize_name(name))] = str(Version(version))
        except InvalidVersion:
            raise click.BadParameter(f"got {word!r}, want NAME==VERSION", param_hint="--with") from None
    return pins


def _plain(word: str) -> str:
    name = word.rpartition("::")[2]
    return "".join(character if character.isalnum() or character in "._" else "_" for character in name) or "own"


def _tell(judged: JudgedCell) -> None:
    cell = judged.cell
    named = ", ".join(f"{name} {version}" for name, version in cell.companions.items())
    released = f" of {cell.released}" if cell.released else ""
    click.echo(
        one_line(f"{cell.package} {cell.version}{released}{f' with {named}' if named else ''}: {judged}"), err=True
    )


def _search(
    cells: tuple[SweepCell, ...], judge: CellJudge, clause: Clause, asked: BisectedRange, repeat: str, *, once: bool
) -> int:
    states: tuple[State, State] = ("new", "old") if asked.fix else ("old", "new")
    good_end, bad_end = (cells[-1], cells[0]) if asked.fix else (cells[0], cells[-1])
    click.echo(
        f"{len(cells)} releases, at most {(len(cells) - 1).bit_length()} of them to judge next to the ends", err=True
    )
    ends = judge.judged(good_end), judge.judged(bad_end)
    for end in ends:
        if end.record is None:
            return _refuse(f"{end.cell.package} {end.cell.version} cannot be judged ({end}); choose another end")
    tests = changed(*ends)
    if not tests:
        turned = changed(ends[1], ends[0])
        hint = "exchange --good and --bad" if turned else "choose other ends or another clause"
        outcomes = [f"{each.cell.package} {each.cell.version} gives {each}" for each in ends]
        return _refuse(f"no test passes with the good end and fails with the bad one: {', '.join(outcomes)}; {hint}")

    def ask(place: int) -> StateAnswer:
        return answer(judge.judged(cells[place]), tests, *states)

    def confirm(place: int) -> StateAnswer:
        again = answer(judge.judged(cells[place], again=True), tests, *states)
        return again if again.state != "skip" else StateAnswer("skip", f"unstable: {again.reason}")

    try:
        boundary = bisect(len(cells), ask, None if once else confirm)
    except UnstableEnd as error:
        place, reason = error.args
        return _refuse(f"{cells[place].version} gives another result when it is judged again ({reason or 'unstable'})")
    good, bad = (boundary.new, boundary.old) if asked.fix else (boundary.old, boundary.new)
    sides = judge.judged(cells[good]), judge.judged(cells[bad])
    crossing = _crossing(sides[0].cell, sides[1].cell, judge, tests)
    result = Bisection(clause, cells, boundary, *sides, tests, crossing, asked.fix, repeat)
    place = judge.settings.folder / REPORT
    judge.settings.folder.mkdir(parents=True, exist_ok=True)
    replace(place, draft(result).encode())
    for line in summary(result):
        click.echo(line)
    click.echo(f"report:  {place}")
    return 0


def _crossing(good: SweepCell, bad: SweepCell, judge: CellJudge, tests: Sequence[str]) -> Crossing | None:
    locks = judge.lock(good), judge.lock(bad)
    if not isinstance(locks[0], Lock) or not isinstance(locks[1], Lock):
        return None

    def side(cell: SweepCell) -> tuple[Side, str]:
        judged = answer(judge.judged(cell), tests, "old", "new")
        sides: dict[State, Side] = {"old": "good", "new": "bad", "skip": ""}
        return sides[judged.state], judged.reason

    return cross(good, bad, (locks[0], locks[1]), side)


def _refuse(problem: str) -> int:
    click.echo(f"conformance: {one_line(problem, 1000)}", err=True)
    return 2
