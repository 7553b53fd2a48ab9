"""Planted costs are told of by the comparison, equal runs are not, and the page says what was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import process_time_ns
from types import SimpleNamespace

import pytest

from benchmarks.planted import __main__ as command
from benchmarks.planted import outcomes, plants, runs
from benchmarks.planted.runs import EXPECTED, PlantedOutcome
from frameworks import install
from results.record.reading import Measurement, Record
from tests.small_record import BASE
from tests.support import one_page

COUNT = "conformance/suites/test_cost.py::test_a_count_is_the_same_every_time[plain]"


def costing(clause: str, value: float) -> Record:
    """The base record with a counted cost of one clause."""
    return replace(BASE, measurements=(Measurement(clause, "cost", "test_a", "B", (value,)),))


def taking(clause: str, seed: int) -> Record:
    """The base record with a cost of one clause that varies."""
    samples = tuple(1.0 + place / (100 + seed) for place in range(60))
    return replace(BASE, measurements=(Measurement(clause, "cost", "test_a", "s", samples),))


def test_equal_runs_tell_nothing() -> None:
    assert runs.told(BASE, BASE, "") == PlantedOutcome("", (), True)
    told = runs.told(costing("cost.x", 1.0), costing("cost.x", 2.0), "")
    assert not told.right
    assert told.changes[0].startswith("measure worse: cost.x, cost/test_a: 1 B → 2 B (+1 B, ratio 2")
    times = runs.told(taking("cost.x", 1), taking("cost.x", 2), "")
    assert times.right
    assert times.changes[0].startswith("not judged here: cost.x")


def test_planted_bytes_have_to_be_told_by_the_clause_about_them() -> None:
    kind, clause = EXPECTED["copy"]

    def right(clause: str, new: float) -> bool:
        return runs.told(costing(clause, 100.0), costing(clause, new), "copy").right

    assert kind.worse
    assert right(clause, 101.0)
    assert not right(clause, 90.0)
    assert not right(clause, 100.0)
    assert not right("cost.another", 110.0)


def test_a_planted_time_is_said_not_to_be_judged() -> None:
    kind, clause = EXPECTED["slow"]
    assert not kind.worse
    assert runs.told(taking(clause, 1), taking(clause, 2), "slow").right
    assert not runs.told(taking("cost.another", 1), taking("cost.another", 2), "slow").right
    assert not runs.told(costing(clause, 100.0), costing(clause, 110.0), "slow").right


def test_a_copy_in_the_reference_is_told_and_a_repeat_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SUITES", (COUNT,))
    monkeypatch.setattr(runs, "possible", lambda _: ("copy",))
    (_, equal), (_, copy) = runs.compared("reference", "cpu", "", 1)
    assert equal == PlantedOutcome("", (), True)
    assert copy.right
    assert [change.partition(",")[0] for change in copy.changes] == ["measure worse: cost.bytes-repeat"]


def test_a_run_that_cannot_be_made_says_why_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["mxnet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown framework 'mxnet'" in line
    assert command.main(["reference", "--repeats", "0"]) == 2
    assert "0 repeats show nothing" in capsys.readouterr().err


def test_a_slow_update_takes_a_tenth_more() -> None:
    def busy() -> int:
        begin = process_time_ns()
        while process_time_ns() < begin + 20_000_000:
            pass
        return process_time_ns() - begin

    trainer = SimpleNamespace(update=busy)
    plants.slow(trainer)
    begin = process_time_ns()
    inner = trainer.update()
    assert 1.095 * inner <= process_time_ns() - begin < 1.3 * inner


def test_a_copy_is_planted_only_where_somebody_wrote_how() -> None:
    assert plants.possible("torch") == ("slow", "copy")
    assert plants.possible("mine") == ("slow",)


def test_all_that_was_kept_is_right() -> None:
    kept = outcomes.STORE.all()
    assert "torch" in {one.framework for one in kept}
    for one in kept:
        assert [told.planted for told in one.told] == [""] * command.REPEATS + [*plants.possible(one.framework)]
        assert all(told.right for told in one.told), one.framework


def test_the_command_keeps_what_it_saw_and_fails_if_a_cost_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = one_page(tmp_path, monkeypatch, "<!-- planted: begin -->\n<!-- planted: end -->\n")
    monkeypatch.setattr(outcomes, "STORE", replace(outcomes.STORE, folder=tmp_path / "samples"))
    monkeypatch.setattr(install, "main", lambda _: 0)
    seen = [
        PlantedOutcome("", (), True),
        PlantedOutcome("slow", ("measure worse: cost.x, a: 1 → 2",), True),
        PlantedOutcome("copy", (), False),
    ]
    monkeypatch.setattr(command, "compared", lambda *_: ((BASE, told) for told in seen))
    assert command.main(["torch"]) == 1
    assert outcomes.STORE.load("torch").told == tuple(seen)
    assert "| torch 2.13.0, cpu eager | 0 of 1 | measure worse: cost.x (1) | no change |" in page.read_text()
    monkeypatch.setattr(command, "compared", lambda *_: ((BASE, told) for told in seen[:2]))
    assert command.main(["torch"]) == 0
