"""Judges cells by the tests of one clause, and says which of them pass and fail."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from conformance.sweep.bisect import State, StateAnswer
from conformance.sweep.cells import SweepCell
from conformance.sweep.driver import RECORDS, SweepSettings, judge_cell
from conformance.sweep.launching import LostCell
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import CellResult
from frameworks.installer.resolution import Lock
from results.record.files import inside
from results.record.files import replace as replace_file
from results.record.outcomes import Outcome
from results.record.reading import Record, TestVerdict, from_json

FAILED = frozenset({Outcome.FAIL, Outcome.KNOWN, Outcome.ERROR, Outcome.MISDECLARED, Outcome.TIMEOUT, Outcome.CRASH})
PASSED = frozenset({Outcome.PASS, Outcome.FIXED})


@dataclass(frozen=True)
class JudgedCell:
    """A cell with its verdicts.

    Attributes:
        problem: why there are none, "" if there are.
        file: the record's place, "" without one.
    """

    cell: SweepCell
    problem: str = ""
    record: Record | None = None
    file: str = ""

    @property
    def verdicts(self) -> Mapping[str, TestVerdict]:
        """Verdicts by test."""
        return {} if self.record is None else {verdict.test: verdict for verdict in self.record.verdicts}

    def tests(self, outcomes: Iterable[Outcome]) -> set[str]:
        """The tests with one of these outcomes."""
        wanted = {*outcomes}
        return {test for test, verdict in self.verdicts.items() if verdict.outcome in wanted}

    def __str__(self) -> str:
        if self.record is None:
            return self.problem
        counts = Counter(str(verdict.outcome) for verdict in self.record.verdicts)
        return " · ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no tests"


Tell = Callable[[JudgedCell], object]


@dataclass
class CellJudge:
    """Judges cells, each once unless it is asked again.

    Attributes:
        plan: has the selection.
        tell: called with each cell that was judged.
    """

    plan: SweepPlan
    settings: SweepSettings
    tell: Tell
    _known: dict[str, JudgedCell] = field(default_factory=dict)

    def judged(self, cell: SweepCell, *, again: bool = False) -> JudgedCell:
        """The verdicts of a cell; of earlier runs too, unless `again`."""
        if not again and cell.key in self._known:
            return self._known[cell.key]
        try:
            result = judge_cell(cell, self.plan, replace(self.settings, fresh=again or self.settings.fresh))
        except LostCell as lost:
            result = CellResult("crash", str(lost))
        judged_cell = self._read(cell, result)
        self._known.setdefault(cell.key, judged_cell)
        self.tell(judged_cell)
        return judged_cell

    def lock(self, cell: SweepCell) -> Lock | str | None:
        """What the cell's environment has, or why there is none."""
        return self.settings.locks.read([cell])[cell.key]

    def _read(self, cell: SweepCell, result: CellResult) -> JudgedCell:
        if not result.record:
            return JudgedCell(cell, f"{result.outcome}: {result.reason}")
        folder = self.settings.folder / RECORDS
        folder.mkdir(parents=True, exist_ok=True)
        path = inside(folder, f"{cell.name}.json.gz")
        replace_file(path, result.record)
        return JudgedCell(cell, "", from_json(gzip.decompress(result.record)), str(path))


def changed(good: JudgedCell, bad: JudgedCell) -> list[str]:
    """The tests that pass in one cell and fail in another, sorted."""
    return sorted(good.tests(PASSED) & bad.tests(FAILED))


def answer(judged: JudgedCell, tests: Iterable[str], good: State, bad: State) -> StateAnswer:
    """Bad if any of these tests fails, good if all that were judged pass, else skipped.

    Args:
        good, bad: the state of a good and of a bad cell.
    """
    if judged.record is None:
        return StateAnswer("skip", judged.problem)
    outcomes = {test: judged.verdicts[test].outcome for test in tests if test in judged.verdicts}
    if any(outcome in FAILED for outcome in outcomes.values()):
        return StateAnswer(bad)
    if unstable := sorted(test for test, outcome in outcomes.items() if outcome is Outcome.UNSTABLE):
        return StateAnswer("skip", f"unstable: {unstable[0]}")
    if any(outcome in PASSED for outcome in outcomes.values()):
        return StateAnswer(good)
    text = ", ".join(sorted({*map(str, outcomes.values())})) or "missing"
    return StateAnswer("skip", f"not judged: its tests are {text}")
