"""Racing processes: turns, what goes wrong with them, and a real one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.main import main
from conformance.race.driver import FEWEST_PAIRS, RaceSettings, race
from conformance.race.judgement import COSTS, judge
from conformance.race.processes import RaceError, Racer, started
from tests.support.racing import FACTS, HERE, ScriptedRacer

FEW = RaceSettings(pairs=FEWEST_PAIRS, rounds=6)


def scripted(**changes: Any) -> ScriptedRacer:
    """A side with these answers besides the usual ones."""
    return ScriptedRacer(HERE, "x", answers=json.dumps(FACTS | changes))


def test_a_race_has_rounds_of_every_side() -> None:
    slow = scripted(step={"value": 10**8}, load=FACTS["load"] | {"version": "1.1"})
    samples = race(scripted(), slow, FEW)
    assert (samples.old, samples.new, samples.place, len(samples.pairs)) == ("1.0", "1.1", "cpu eager", FEWEST_PAIRS)
    for pair in samples.pairs:
        assert {side: [len(times) for times in one.rounds.values()] for side, one in pair.items()} == {
            "old": [6, 2, 2],
            "new": [6, 2, 2],
            "twin": [6, 2, 2],
        }
        assert set(pair["new"].once) == {cost.key for cost in COSTS if not cost.rounds}
        assert set(pair["new"].rounds["step"]) == {10**8}
    assert judge(samples).status == 1


def test_a_work_that_one_side_lacks_is_left_out() -> None:
    samples = race(scripted(kinds={"kinds": ["step", "yardstick"]}), scripted(), FEW)
    assert [each.cost.key for each in judge(samples).verdicts] == ["step", "first", "import", "memory"]


def test_no_pair_begins_after_the_limit() -> None:
    samples = race(scripted(), scripted(), RaceSettings(pairs=9, rounds=1, limit_s=0.0))
    assert len(samples.pairs) == FEWEST_PAIRS


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"load": {"refused": "x cannot be imported"}}, "new: load: x cannot be imported"),
        ({"first": "die"}, "new: its process ended: the interpreter died"),
        ({"first": "no json"}, "new: got b'no json' from its process, want JSON"),
        ({"first": {"value": -1}}, "new: first: got '-1', want a positive number"),
        ({"first": {"value": "7"}}, "new: first: got '7', want a positive number"),
        ({"kinds": {"kinds": ["yardstick"]}}, "the sides can do yardstick in rounds, want step first"),
        ({"load": FACTS["load"] | {"place": "cuda eager"}}, "the sides run on cpu eager and cuda eager"),
    ],
)
def test_a_side_that_cannot_be_measured_ends_the_race(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(RaceError) as caught:
        race(scripted(), scripted(**changes), FEW)
    assert str(caught.value).startswith(why)


def test_a_process_that_hangs_is_left_and_ended() -> None:
    with started("old", scripted(step="hang")) as process:
        with pytest.raises(RaceError, match="no answer within 0 s"):
            process.ask("step", limit_s=0.05)
        number = process._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_python_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", "reference", "--old-python", str(tmp_path / "python")]) == 2
    assert "no such file or directory; name a Python that has the framework" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["reference"], ["reference", "--pairs", "4"]])
def test_wrong_arguments_are_refused_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_real_process() -> None:
    with started("old", Racer(HERE, "reference", "cpu", "", "small-mlp")) as process:
        with pytest.raises(RaceError, match="load comes first"):
            process.ask("step")
        assert process.ask("load")["place"] == "cpu emulated"
        with pytest.raises(RaceError, match="the first step comes first"):
            process.ask("step")
        assert process.value("first") > 0
        assert process.ask("kinds")["kinds"] == ["step", "optimizer", "yardstick"]
        assert all(process.value(kind, 2) > 0 for kind in ("step", "optimizer", "yardstick"))
        assert process.value("memory") > 10 * 2**20
