"""Sweeps with an engine that answers at once: each cell once, whatever kills the driver, and a reason for each hole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from conformance.spec import clauses
from conformance.sweep import cell_locks, journal
from conformance.sweep.cells import SweepCell
from conformance.sweep.driver import SweepSettings, VersionSweep
from conformance.sweep.journal import CellEnding, opened
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import OUT_OF_TIME, CellRequest, CellResult
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import EnvironmentRequest, Lock
from results.record.files import RecordBusy, packed
from results.record.journal import Journal
from results.record.reading import load, to_json
from tests.support.recorded import filled, header
from tools.benchmarks.sweeps.wheels import PACKAGE, TOY

PLAN = SweepPlan("toys", (), ("-k", "scaling"))
CELLS = tuple(
    SweepCell(TOY, version, PACKAGE, version, f"2026-01-0{version[0]}", mode=mode)
    for version in ("1.0", "2.0", "3.0")
    for mode in ("emulated", "ranks")
)
Answer = Callable[[CellRequest], CellResult | str]


class Killed(BaseException):
    """The driver dies."""


@dataclass
class AnsweringEngine:
    """Answers in the order of submission.

    Attributes:
        answers: for the cells of a name; others are judged.
        most: answers until the driver dies.
    """

    content: bytes
    answers: Mapping[str, list[CellResult | str]] = field(default_factory=dict)
    most: int = 1000
    asked: list[CellRequest] = field(default_factory=list)
    closed: bool = False
    _due: list[tuple[str, CellRequest]] = field(default_factory=list)

    def submit(self, key: str, request: CellRequest) -> None:
        assert msgspec.json.decode(msgspec.json.encode(request), type=CellRequest) == request
        self.asked.append(request)
        self._due.append((key, request))

    def next(self) -> tuple[str, CellResult | str]:
        if self.most == 0:
            raise Killed
        self.most -= 1
        key, request = self._due.pop(0)
        name = f"{request.cell.version}-{request.cell.mode}"
        answers = self.answers.get(name)
        answer = answers.pop(0) if answers else CellResult("judged", record=self.content, ran=3)
        if isinstance(answer, str):
            return key, answer
        return key, msgspec.json.decode(msgspec.json.encode(answer), type=CellResult)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def solved(monkeypatch: pytest.MonkeyPatch) -> list[EnvironmentRequest]:
    """The environments that are resolved; the toy's version 9 has no solution."""
    asked: list[EnvironmentRequest] = []

    def solve(wanted: EnvironmentRequest) -> Lock:
        asked.append(wanted)
        if wanted.version.startswith("9"):
            raise Unavailable("nothing goes with it")
        return Lock((f"{PACKAGE}=={wanted.version}",), {PACKAGE: wanted.version})

    monkeypatch.setattr(cell_locks, "resolve", solve)
    return asked


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """A compressed record."""
    path = filled(Journal.create(tmp_path / "one" / "record.json", header())).finish()
    return packed(Path("x.gz"), to_json(load(path)))


def swept(
    folder: Path,
    engine: AnsweringEngine,
    cells: tuple[SweepCell, ...] = CELLS,
    *,
    retry: bool = False,
    plan: SweepPlan = PLAN,
) -> dict[str, CellEnding]:
    """The endings of a sweep by cells' names."""
    settings = SweepSettings(folder / "sweep", retry=retry)
    sweep = VersionSweep(plan, cells, settings, frozenset(cell.key for cell in cells), lambda *_: None)
    endings = sweep.run(lambda: engine)
    return {cell.name: endings[cell.key] for cell in cells if cell.key in endings}


def outcomes(folder: Path) -> list[dict[str, object]]:
    """The cells of `outcomes.json`."""
    document = json.loads((folder / "sweep" / "outcomes.json").read_bytes())
    assert document["version"] == 1
    return list(document["cells"])


def test_each_cell_has_a_record_and_a_line_of_the_outcomes(tmp_path: Path, content: bytes) -> None:
    engine = AnsweringEngine(content)
    endings = swept(tmp_path, engine)
    assert {ending.outcome for ending in endings.values()} == {"judged"}
    assert len(engine.asked) == 6
    assert engine.closed
    assert {request.lock.pins[PACKAGE] for request in engine.asked if request.lock} == {"1.0", "2.0", "3.0"}
    assert len({request.marker for request in engine.asked}) == 6
    first, *_ = outcomes(tmp_path)
    versions = {"framework": TOY, "version": "1.0", "released": "2026-01-01", "package": PACKAGE}
    assert first == {**first, **versions, "mode": "emulated", "outcome": "judged", "reason": ""}
    for each in outcomes(tmp_path):
        assert load(tmp_path / "sweep" / "records" / str(each["record"])).verdicts


@pytest.mark.parametrize("most", range(6))
def test_a_killed_sweep_continues_and_runs_no_cell_twice(tmp_path: Path, content: bytes, most: int) -> None:
    first, second = AnsweringEngine(content, most=most), AnsweringEngine(content)
    with pytest.raises(Killed):
        swept(tmp_path, first)
    assert first.closed
    endings = swept(tmp_path, second)
    assert len(second.asked) == 6 - most
    assert {ending.outcome for ending in endings.values()} == {"judged"}
    assert len(outcomes(tmp_path)) == 6


@pytest.mark.parametrize(("cut", "due"), [(1, 0), (2, 1), (40, 1), (200, 1)])
def test_a_journal_that_is_cut_in_a_line_is_continued(tmp_path: Path, content: bytes, cut: int, due: int) -> None:
    swept(tmp_path, AnsweringEngine(content))
    path = tmp_path / "sweep" / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    again = AnsweringEngine(content)
    assert {ending.outcome for ending in swept(tmp_path, again).values()} == {"judged"}
    assert len(again.asked) == due
    assert not swept(tmp_path, AnsweringEngine(content, most=0)).keys() - {cell.name for cell in CELLS}


def test_a_second_sweep_on_the_folder_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path / "sweep"), pytest.raises(RecordBusy, match="another sweep is writing it; wait"):
        swept(tmp_path, AnsweringEngine(content))
    swept(tmp_path, AnsweringEngine(content))


def test_holes_have_reasons_and_are_tried_again_when_asked(tmp_path: Path, content: bytes) -> None:
    unsolved = SweepCell(TOY, "9.0", PACKAGE, "9.0")
    yanked = replace(CELLS[0], outcome="yanked", reason="it was withdrawn")
    cells = (unsolved, yanked, *CELLS[1:4])
    late = CellResult(OUT_OF_TIME, "more than 5 s", log="the last line")
    engine = AnsweringEngine(content, {"1.0-ranks": [late], "2.0-emulated": [CellResult("import failed", "no module")]})
    endings = swept(tmp_path, engine, cells)
    assert [(each["outcome"], each["reason"], each["record"]) for each in outcomes(tmp_path)][:4] == [
        ("no solution", "nothing goes with it", ""),
        ("yanked", "it was withdrawn", ""),
        ("out of time", "more than 5 s", ""),
        ("import failed", "no module", ""),
    ]
    assert (tmp_path / "sweep" / "logs" / f"{CELLS[1].name}.txt").read_text() == "the last line"
    assert endings[CELLS[3].name].outcome == "judged"
    assert swept(tmp_path, AnsweringEngine(content, most=0), cells) == endings
    again = AnsweringEngine(content)
    assert swept(tmp_path, again, cells, retry=True)[CELLS[1].name].outcome == "judged"
    assert sorted(request.cell.version for request in again.asked) == ["1.0", "2.0"]


@pytest.mark.parametrize(
    ("plan", "runs"),
    [
        (replace(PLAN, limit_s=PLAN.limit_s + 60.0), 1),
        (replace(PLAN, limit_s=PLAN.limit_s - 60.0), 0),
        (replace(PLAN, selection=("--tests=quick",)), 2),
    ],
)
def test_a_cell_that_was_out_of_time_is_run_again_when_it_has_more(
    tmp_path: Path, content: bytes, plan: SweepPlan, runs: int
) -> None:
    swept(tmp_path, AnsweringEngine(content, {"1.0-emulated": [CellResult(OUT_OF_TIME, "it took long")]}), CELLS[:2])
    again = AnsweringEngine(content)
    swept(tmp_path, again, CELLS[:2], plan=plan)
    assert len(again.asked) == runs


def test_a_lost_cell_is_queued_again_some_times(tmp_path: Path, content: bytes) -> None:
    engine = AnsweringEngine(content, {"1.0-emulated": ["node died"], "2.0-ranks": ["a", "b", "worker died", "never"]})
    endings = swept(tmp_path, engine)
    assert (endings[CELLS[0].name].outcome, endings[CELLS[0].name].attempts) == ("judged", 2)
    lost = endings[CELLS[3].name]
    assert (lost.outcome, lost.reason, lost.attempts) == ("crash", "lost 3 times (worker died)", 3)
    assert len(engine.asked) == 6 + 1 + 2
    assert len({request.marker for request in engine.asked}) == len(engine.asked)


def test_a_raised_revision_makes_cells_due_again(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(tmp_path, AnsweringEngine(content))
    known = clauses.load_clauses()
    name = next(iter(known))
    raised = {**known, name: replace(known[name], revision=known[name].revision + 1)}
    monkeypatch.setattr(journal, "load_clauses", lambda: raised)
    again = AnsweringEngine(content)
    swept(tmp_path, again)
    assert len(again.asked) == 6


def test_the_locks_of_a_sweep_stay(tmp_path: Path, content: bytes, solved: list[EnvironmentRequest]) -> None:
    swept(tmp_path, AnsweringEngine(content))
    assert sorted(each.version for each in solved) == ["1.0", "2.0", "3.0"], "once for both modes"
    (tmp_path / "sweep" / "journal.jsonl").unlink()
    swept(tmp_path, AnsweringEngine(content))
    assert len(solved) == 3
