"""Sweeps with an engine that answers at once: each cell once, whatever kills the driver, and a reason for each hole."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from conformance.sweep.cell import CellFolder, CellRequest, CellResult, Sweep
from conformance.sweep.plan import SweepCell, SweepPlan
from results.record.files import packed
from results.record.journal import Journal
from results.record.reading import load, to_json
from tests.support.recorded import filled, header
from tests.support.wheels import PACKAGE, TOY

PLAN = SweepPlan("toys", (), ("-k", "scaling"))
CELLS = tuple(
    SweepCell(TOY, version, PACKAGE, version, f"2026-01-0{version[0]}", mode=mode)
    for version in ("1.0", "2.0", "3.0")
    for mode in ("emulated", "ranks")
)


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
    _due: list[CellRequest] = field(default_factory=list)

    def submit(self, request: CellRequest) -> None:
        self.asked.append(request)
        self._due.append(request)

    def next(self) -> tuple[CellRequest, CellResult | str]:
        if self.most == 0:
            raise Killed
        self.most -= 1
        request = self._due.pop(0)
        answers = self.answers.get(f"{request.cell.version}-{request.cell.mode}")
        return request, answers.pop(0) if answers else CellResult("judged", record=self.content)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """A compressed record of the plan's selection."""
    record = load(filled(Journal.create(tmp_path / "one" / "record.json", header())).finish())
    return packed(Path("x.gz"), to_json(replace(record, selection="-k scaling", seed=0)))


def sweep(
    folder: Path,
    engine: AnsweringEngine,
    cells: tuple[SweepCell, ...] = CELLS,
    *,
    fresh: bool = False,
    plan: SweepPlan = PLAN,
) -> Mapping[str, CellResult]:
    """The results of a sweep."""
    names = {cell.name for cell in cells}
    return Sweep(CellFolder(folder / "sweep", plan), cells, names, lambda *_: None, fresh).run(lambda: engine)


def outcomes(folder: Path) -> list[dict[str, object]]:
    """The cells of `outcomes.json`."""
    document = json.loads((folder / "sweep" / "outcomes.json").read_bytes())
    assert document["version"] == 1
    return list(document["cells"])


def test_sweep_every_cell_has_a_record_and_an_entry(tmp_path: Path, content: bytes) -> None:
    engine = AnsweringEngine(content)
    assert {result.outcome for result in sweep(tmp_path, engine).values()} == {"judged"}
    assert len(engine.asked) == 6
    assert engine.closed
    first, *_ = outcomes(tmp_path)
    versions = {"framework": TOY, "version": "1.0", "released": "2026-01-01", "package": PACKAGE}
    assert first == {**first, **versions, "mode": "emulated", "outcome": "judged", "reason": ""}
    for entry in outcomes(tmp_path):
        assert load(tmp_path / "sweep" / "records" / str(entry["record"])).verdicts


@pytest.mark.parametrize("most", [0, 3, 5])
def test_sweep_killed_continues_and_runs_no_cell_twice(tmp_path: Path, content: bytes, most: int) -> None:
    first, second = AnsweringEngine(content, most=most), AnsweringEngine(content)
    with pytest.raises(Killed):
        sweep(tmp_path, first)
    assert first.closed
    assert {result.outcome for result in sweep(tmp_path, second).values()} == {"judged"}
    assert len(second.asked) == 6 - most
    assert len(outcomes(tmp_path)) == 6


@pytest.mark.parametrize(
    ("plan", "fresh", "runs"),
    [
        (PLAN, False, 0),
        (PLAN, True, 6),
        (replace(PLAN, limit_s=5.0, workers=4), False, 0),
        (replace(PLAN, selection=("--tests=quick",)), False, 6),
        (replace(PLAN, seed=1), False, 6),
    ],
)
def test_sweep_again_runs_cells_whose_record_does_not_answer(
    tmp_path: Path, content: bytes, plan: SweepPlan, fresh: bool, runs: int
) -> None:
    sweep(tmp_path, AnsweringEngine(content))
    again = AnsweringEngine(content)
    sweep(tmp_path, again, fresh=fresh, plan=plan)
    assert len(again.asked) == runs


def test_sweep_holes_have_reasons_and_are_tried_again(tmp_path: Path, content: bytes) -> None:
    yanked = replace(CELLS[0], outcome="yanked", reason="it was withdrawn")
    cells = (yanked, *CELLS[1:4])
    late = CellResult("out of time", "more than 5 s", log="the last line")
    engine = AnsweringEngine(content, {"1.0-ranks": [late], "2.0-emulated": [CellResult("import failed", "no module")]})
    results = sweep(tmp_path, engine, cells)
    assert [(entry["outcome"], entry["reason"], entry["record"]) for entry in outcomes(tmp_path)][:3] == [
        ("yanked", "it was withdrawn", ""),
        ("out of time", "more than 5 s", ""),
        ("import failed", "no module", ""),
    ]
    assert (tmp_path / "sweep" / "logs" / f"{CELLS[1].name}.txt").read_text() == "the last line"
    assert results[CELLS[3].name].outcome == "judged"
    again = AnsweringEngine(content)
    assert sweep(tmp_path, again, cells)[CELLS[1].name].outcome == "judged"
    assert sorted(request.cell.version for request in again.asked) == ["1.0", "2.0"]


def test_sweep_lost_cell_is_queued_again_some_times(tmp_path: Path, content: bytes) -> None:
    engine = AnsweringEngine(content, {"1.0-emulated": ["node died"], "2.0-ranks": ["a", "b", "worker died", "never"]})
    results = sweep(tmp_path, engine)
    assert results[CELLS[0].name].outcome == "judged"
    lost = results[CELLS[3].name]
    assert (lost.outcome, lost.reason) == ("crash", "lost 3 times (worker died)")
    assert len(engine.asked) == 6 + 1 + 2
