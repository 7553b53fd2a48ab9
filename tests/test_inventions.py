"""Rounds of invention: a run that does not end says nothing of its fault, and a round goes on where it was left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inventions import __main__ as command
from tests.inventions import rounds
from tests.inventions.rounds import Invention, Seen
from tests.mutants import engine
from tests.mutants.engine import Engine, RunError

FAULTS = [Invention(f"package.faults_1:{name}", "Something is wrong.", "", "laws.programs", "real") for name in "AB"]
CAUGHT = Seen("A", "test_laws.py::test_a", "laws.programs", "scaling.automaton", "it differs")


def test_a_run_that_is_ended_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIMIT_S", 0.05)
    with pytest.raises(RunError, match="did not end within"):
        Engine().run("reference", "", ["conformance/suites/test_scaling.py"], "ended")


def test_a_round_goes_on_where_runs_did_not_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "round_x").mkdir()
    asked: list[str] = []
    busy = True

    def seen(_: Engine, fault: Invention) -> Seen:
        asked.append(fault.label)
        if busy and fault.label == "B":
            raise RunError("a run did not end within 1 s")
        return CAUGHT if fault.label == "A" else Seen("B")

    monkeypatch.setattr(rounds, "FOLDER", tmp_path)
    monkeypatch.setattr(rounds, "seen", seen)
    monkeypatch.setattr(command, "inventions", lambda _: FAULTS)
    assert command.main(["round_x", "--workers", "1"]) == 2
    said = capsys.readouterr()
    assert "UNKNOWN real      B: a run did not end within 1 s" in said.out
    assert "1 runs did not end" in said.err
    assert not (tmp_path / "round_x" / "result.json").exists()
    busy = False
    assert command.main(["round_x", "--workers", "1"]) == 0
    assert asked == ["A", "B", "B"]
    stored = json.loads((tmp_path / "round_x" / "result.json").read_text("utf-8"))
    assert [each["test"] for each in stored["faults"]] == [CAUGHT.test, ""]
    assert not (tmp_path / "round_x" / "result.partial.json").exists()
