"""Rounds of invention: a run that does not end says nothing of its fault, and a round goes on where it was left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results.record.reading import Outcome, TestVerdict
from tests.faults import engine
from tests.faults.engine import Engine, RunError
from tests.inventions import __main__ as command
from tests.inventions import rounds
from tests.inventions.rounds import Invention, Seen

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


class _Script(Engine):
    """An engine whose runs find what they are told to."""

    def __init__(self, *found: tuple[TestVerdict, ...]) -> None:
        super().__init__()
        self._found = iter(found)

    def run(self, *_: Any, **__: Any) -> tuple[TestVerdict, ...]:
        return next(self._found)


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CRASH])
def test_a_test_that_does_not_end_is_no_failure_and_no_miss(outcome: Outcome) -> None:
    """A later test that fails shows the fault; where none does, nothing is known."""
    slow = TestVerdict("laws.programs/test_slow", "laws.programs", outcome)
    failing = TestVerdict("scaling.a/test_failing", "scaling.a", Outcome.FAIL)
    assert rounds.seen(_Script((slow,), (failing,)), FAULTS[0]).test == failing.test
    assert rounds.seen(_Script((), ()), FAULTS[0]).test == ""
    with pytest.raises(RunError, match="test_slow did not end"):
        rounds.seen(_Script((slow,), ()), FAULTS[0])
