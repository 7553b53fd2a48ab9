"""Bisection of releases by the tests of one clause, and the crossing of environments that names the guilty package.

The bisection assumes that releases turn from good to bad once. Releases that cannot be judged are skipped; if they lie
next to the change, the answer is a range of releases.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from conformance.sweep.cell import (
    ROOT,
    CellFolder,
    CellResult,
    Commands,
    LostCell,
    NotJudged,
    load_finished,
    make_environment,
    requirements_of,
    run_cell,
)
from conformance.sweep.plan import SweepCell
from frameworks.installer.distributions import distribution_of
from results.compare.environment import BUNDLED, COMPANIONS, LIBRARIES, ON_A_GPU
from results.record.files import RecordError, one_line
from results.record.model import Outcome
from results.record.reading import Record, TestVerdict

if TYPE_CHECKING:
    from results.curves.reading import Curve

Side = Literal["good", "bad", ""]
"""The verdict on a release or a mixed environment; "" if it cannot be judged."""

Answer = tuple[Side, str]
"""A side, and the reason if there is none."""

Versions = Mapping[str, str]
"""Versions by package, without local labels."""

FAILED = frozenset({Outcome.FAIL, Outcome.KNOWN, Outcome.ERROR, Outcome.MISDECLARED, Outcome.TIMEOUT, Outcome.CRASH})
PASSED = frozenset({Outcome.PASS, Outcome.FIXED})

MAX_REVERTED = 8
"""Largest number of companions that are reverted one by one."""


class UnstableEnd(Exception):
    """An end gave the other side when it was judged again; the arguments are its index and the reason."""


@dataclass(frozen=True)
class Boundary:
    """The boundary between good and bad members of a sequence.

    Attributes:
        good: index of the last good member.
        bad: index of the first bad member after it.
        skipped: reasons of all members that were judged and are neither good nor bad, by index.
    """

    good: int
    bad: int
    skipped: Mapping[int, str]

    @property
    def between(self) -> Mapping[int, str]:
        """Reasons of the members between good and bad, by index; one of them may be the first bad one."""
        return {index: reason for index, reason in sorted(self.skipped.items()) if self.good < index < self.bad}


def bisect(count: int, ask: Callable[[int], Answer], confirm: Callable[[int], Answer]) -> Boundary:
    """Find the boundary in a sequence of at least two members, whose first is good and whose last is bad.

    Args:
        ask: returns the side of a member; it is called at most once for each member.
        confirm: judges a member next to the boundary again. A member whose side differs then is skipped.

    Raises:
        UnstableEnd: an end is of another side when it is judged again.
    """
    sides: dict[int, Side] = {0: "good", count - 1: "bad"}
    skipped: dict[int, str] = {}
    confirmed: set[int] = set()
    while True:
        good = max(index for index, side in sides.items() if side == "good")
        bad = min(index for index, side in sides.items() if side == "bad" and index > good)
        waiting = [index for index in range(good + 1, bad) if index not in skipped]
        if waiting:
            middle = min(waiting, key=lambda index: (abs(2 * index - good - bad), index))
            side, reason = ask(middle)
        elif unconfirmed := [index for index in (bad, good) if index not in confirmed]:
            middle = unconfirmed[0]
            side, reason = confirm(middle)
            confirmed.add(middle)
            if side == sides[middle]:
                continue
            if middle in (0, count - 1):
                raise UnstableEnd(middle, reason)
            side, reason = "", reason or "another state when it was judged again"
        else:
            return Boundary(good, bad, skipped)
        if side:
            sides[middle] = side
        else:
            skipped[middle] = reason
            sides.pop(middle, None)


@dataclass(frozen=True)
class CellVerdicts:
    """A cell with its verdicts.

    Attributes:
        problem: why there are no verdicts, "" if there are.
        file: the record's path, "" without one.
    """

    cell: SweepCell
    problem: str = ""
    record: Record | None = None
    file: str = ""

    @property
    def verdicts(self) -> Mapping[str, TestVerdict]:
        """Verdicts by test."""
        return {} if self.record is None else {verdict.test: verdict for verdict in self.record.verdicts}

    @property
    def packages(self) -> Versions:
        """Versions of the packages in the environment; none without a record."""
        packages = {} if self.record is None else self.record.variant.packages
        return {name: version.partition("+")[0] for name, version in packages.items()}

    def tests(self, outcomes: Collection[Outcome]) -> set[str]:
        """The tests with one of these outcomes."""
        return {test for test, verdict in self.verdicts.items() if verdict.outcome in outcomes}

    def __str__(self) -> str:
        if self.record is None:
            return self.problem
        counts = Counter(str(verdict.outcome) for verdict in self.record.verdicts)
        return " · ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no tests"


@dataclass
class CellJudge:
    """Judges cells in a folder, each once, and none that has a record; `tell` gets the result of each cell."""

    folder: CellFolder
    tell: Callable[[CellVerdicts], object]
    _known: dict[str, CellVerdicts] = field(default_factory=dict)

    def judge(self, cell: SweepCell) -> CellVerdicts:
        """Return the verdicts of a cell."""
        if cell.name not in self._known:
            verdicts = self._known[cell.name] = self._judge(cell)
            self.tell(verdicts)
        return self._known[cell.name]

    def judge_again(self, cell: SweepCell) -> CellVerdicts:
        """Return the verdicts of a second run of a cell."""
        again = CellFolder(self.folder.path / "again", self.folder.plan)
        return CellJudge(again, self.tell).judge(cell)

    def _judge(self, cell: SweepCell) -> CellVerdicts:
        path, plan = self.folder.record(cell), self.folder.plan
        record, result = load_finished(path, plan), CellResult(cell.outcome, cell.reason)
        if record is None and not cell.outcome:
            try:
                result = run_cell(self.folder.request(cell))
            except LostCell as lost:
                result = CellResult("crash", str(lost))
            self.folder.store(cell, result)
            record = load_finished(path, plan) if result.outcome == "judged" else None
        if record is None:
            return CellVerdicts(cell, f"{result.outcome}: {result.reason}")
        return CellVerdicts(cell, "", record, str(path))


@dataclass
class ProgramJudge:
    """Runs a program of the user's with releases, each once, and compares its curve with that of the first release.

    The program writes its curve to the file that the variable CONFORMANCE_CURVE names, as `CurveRecorder()` does.

    Attributes:
        folder: folder of the curves; a release whose curve is there is not run again.
        command: the program and its arguments; `python` is that of the release's environment.
        tell: gets each result in one line.
    """

    folder: Path
    command: Sequence[str]
    limit_s: float
    tell: Callable[[str], object]
    _reference: "Curve | None" = None

    def ask(self, cell: SweepCell) -> Answer:
        """Return the side of a release."""
        return self._answer(cell, self.folder / f"{cell.name}.jsonl")

    def confirm(self, cell: SweepCell) -> Answer:
        """Return the side of a second run with a release."""
        return self._answer(cell, self.folder / "again" / f"{cell.name}.jsonl")

    def versions(self, cell: SweepCell) -> Versions:
        """Return the versions that a release's curve names."""
        from results.curves.reading import read_curve  # imports NumPy

        return read_curve(self.folder / f"{cell.name}.jsonl").versions

    def _answer(self, cell: SweepCell, path: Path) -> Answer:
        from results.curves.judge import compare_curves
        from results.curves.reading import read_curve

        try:
            if not path.is_file():
                self._run(cell, path)
            curve = read_curve(path)
        except NotJudged as refusal:
            return "", one_line(refusal.reason)
        except (LostCell, OSError, RecordError) as error:
            return "", one_line(str(error))
        self._reference = self._reference or curve
        judgement = compare_curves(self._reference, curve)
        self.tell(f"{cell.release}: {judgement.sentence}")
        sides: tuple[Side, ...] = ("good", "bad", "")
        return sides[judgement.status], judgement.sentence

    def _run(self, cell: SweepCell, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        commands, log = Commands(), path.with_suffix(".log")
        with TemporaryDirectory(prefix="conformance-") as name:
            python = make_environment(Path(name) / "environment", requirements_of(cell), commands)
            search = (str(python.parent), os.environ.get("PATH", ""))
            variables = {"CONFORMANCE_CURVE": str(path), "PYTHONPATH": str(ROOT), "PATH": os.pathsep.join(search)}
            end = commands.run(self.command, log, self.limit_s, {**os.environ, **variables}, Path.cwd())
        if end.status != 0 or not path.is_file():
            path.unlink(missing_ok=True)
            why = f"ended with {end.status}: {end.last_line}" if end.status else "wrote no curve to CONFORMANCE_CURVE"
            why = f"took more than {self.limit_s:.0f} s" if end.status is None else why
            raise NotJudged("crash", f"the program {why}; see {log}")


def changed_tests(good: CellVerdicts, bad: CellVerdicts) -> list[str]:
    """Return the tests that pass in the good cell and fail in the bad one, sorted."""
    return sorted(good.tests(PASSED) & bad.tests(FAILED))


def classify(result: CellVerdicts, tests: Iterable[str]) -> Answer:
    """Return bad if any of these tests fails, good if all judged ones pass, else "" with the reason."""
    if result.record is None:
        return "", result.problem
    outcomes = {test: result.verdicts[test].outcome for test in tests if test in result.verdicts}
    if any(outcome in FAILED for outcome in outcomes.values()):
        return "bad", ""
    if unstable := sorted(test for test, outcome in outcomes.items() if outcome is Outcome.UNSTABLE):
        return "", f"unstable: {unstable[0]}"
    if any(outcome in PASSED for outcome in outcomes.values()):
        return "good", ""
    text = ", ".join(sorted({*map(str, outcomes.values())})) or "missing"
    return "", f"not judged: its tests are {text}"


@dataclass(frozen=True)
class MixedCell:
    """A mixed environment: its name in words, its side, and the reason if it has none."""

    name: str
    side: Side
    reason: str = ""


@dataclass(frozen=True)
class Crossing:
    """The mixed environments and the conclusion from them.

    Attributes:
        guilty: the package whose version decides, "" if no single package does.
        why: the reason in one sentence.
        differences: versions by package in the good and the bad environment, "" for a missing package.
        cells: the mixed environments in the order in which they were judged.
    """

    guilty: str
    why: str
    differences: Mapping[str, tuple[str, str]]
    cells: tuple[MixedCell, ...]


def differences(good: Versions, bad: Versions) -> dict[str, tuple[str, str]]:
    """Return the packages whose versions differ between two environments."""
    both = {name: (good.get(name, ""), bad.get(name, "")) for name in sorted({*good, *bad})}
    return {name: versions for name, versions in both.items() if versions[0] != versions[1]}


def companions_of(cell: SweepCell, different: Collection[str]) -> list[str]:
    """Return the differing packages that compute next to the varying one, those that the adapter declares first.

    Packages that the framework's own wheel requires in one version are left out.
    """
    distribution = distribution_of(cell.framework)
    declared = () if distribution is None else distribution.companions_in([cell.mode])
    known = dict.fromkeys([*declared, *sorted(COMPANIONS | LIBRARIES)])
    known.pop(cell.package, None)
    return [name for name in known if name in different and not name.startswith((*BUNDLED, *ON_A_GPU))]


def cross(
    good: SweepCell, bad: SweepCell, packages: tuple[Versions, Versions], judge: Callable[[SweepCell], Answer]
) -> Crossing:
    """Judge mixed environments until one package is left.

    Args:
        good, bad: the cells next to the boundary.
        packages: versions in the good and in the bad environment.
        judge: returns the side of a cell, or the reason why it has none.
    """
    (old, new), package = packages, bad.package
    different = differences(old, new)
    companions = companions_of(bad, different)
    cells: list[MixedCell] = []

    def judge_mixed(base: SweepCell, pins: Versions, name: str, reverted: Versions | None = None) -> Side:
        """Judge a release with the companions of an environment, some of them in the versions of `reverted`."""
        versions = {companion: pins[companion] for companion in companions if pins.get(companion)}
        side, reason = judge(replace(base, companions={**base.companions, **versions, **(reverted or {})}))
        cells.append(MixedCell(name, side, reason))
        return side

    def conclude(guilty: str, why: str) -> Crossing:
        return Crossing(guilty, why, different, tuple(cells))

    if not companions:
        return conclude(package, f"{package} is the only package that computes and has another version")
    mixed = f"{package} {bad.version} with the companions of {good.version}"
    with_old = judge_mixed(bad, old, mixed)
    with_new = judge_mixed(good, new, f"{package} {good.version} with the companions of {bad.version}")
    unknown = "the reverse cannot be judged"
    decisive = {
        ("bad", "good"): f"{package} decides, whatever its companions",
        ("bad", ""): f"{package} {bad.version} fails with the companions of {good.version}; {unknown}",
        ("", "good"): f"{package} {good.version} passes with the companions of {bad.version}; {unknown}",
    }
    if why := decisive.get((with_old, with_new)):
        return conclude(package, why)
    if with_old == "good" or (with_old, with_new) == ("", "bad"):
        for name in [companion for companion in companions if old.get(companion)][:MAX_REVERTED]:
            title = f"{package} {bad.version} and its companions, but {name} {old[name]}"
            side = judge_mixed(bad, new, title, {name: old[name]})
            if (with_old, side) == ("good", "") and new.get(name):
                opposite: dict[Side, Side] = {"bad": "good", "good": "bad", "": ""}
                side = opposite[judge_mixed(bad, old, f"{mixed}, but {name} {new[name]}", {name: new[name]})]
            if side == "good" and with_new == "good":
                together = f"{package} and {name} together give the failure"
                return conclude("", f"{together}: either of them reverted alone passes")
            if side == "good":
                reverse = f"; {package} of the good environment fails with the bad companions" if with_new else ""
                decides = f"of the companions {name} alone decides next to the {package} of the bad environment"
                return conclude(name, f"{decides}{reverse}")
    several = {
        ("bad", "bad"): f"either {package} or its companions alone give the failure",
        ("good", "good"): f"only {package} and several companions together give the failure",
    }
    return conclude("", several.get((with_old, with_new), "no package decides alone"))


def search(cells: Sequence[SweepCell], judge: CellJudge, tests: Sequence[str]) -> Boundary:
    """Find the boundary between cells; by these tests the first cell is good and the last is bad.

    Raises:
        UnstableEnd: an end gave the other side when it was judged again.
    """

    def confirm(index: int) -> Answer:
        side, reason = classify(judge.judge_again(cells[index]), tests)
        return side, reason if side else f"unstable: {reason}"

    return bisect(len(cells), lambda index: classify(judge.judge(cells[index]), tests), confirm)
