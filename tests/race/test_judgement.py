"""Estimates and verdicts of races, on made-up samples."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.cli.main import main
from conformance.race import rendering
from conformance.race.estimates import of_rounds
from conformance.race.judgement import RaceOutcome, judge
from conformance.race.samples import RaceSamples, load, write
from results.record.files import RecordError
from tests.support.racing import raced


def outcomes(samples: RaceSamples) -> dict[str, str]:
    """The outcome of each cost."""
    return {each.cost.key: each.outcome.value for each in judge(samples).verdicts}


def test_an_interval_is_over_pairs_and_not_over_rounds() -> None:
    logs = [0.00, 0.01, 0.02, 0.03, 0.04]
    few, many = (of_rounds([[1.0] * rounds] * 5, [[math.exp(each)] * rounds for each in logs]) for rounds in (10, 1000))
    assert few == many
    assert math.isclose(few.estimate, math.exp(0.02), rel_tol=1e-12)
    reach = 4.604094871415897 * np.std(logs, ddof=1) / math.sqrt(5)
    assert math.isclose(few.high, math.exp(0.02 + reach), rel_tol=1e-9)
    assert math.isclose(few.low, math.exp(0.02 - reach), rel_tol=1e-9)


def test_disturbed_rounds_are_trimmed() -> None:
    calm = [1.0] * 10
    hit = [1.0] * 8 + [50.0, 0.01]
    assert of_rounds([calm] * 5, [hit] * 5).estimate == 1.0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [([1.0] * 4, [1.0] * 4, "4 pairs"), ([1.0] * 5, [0.0] * 5, "positive"), ([math.nan] * 5, [1.0] * 5, "positive")],
)
def test_what_gives_no_ratio_says_why(old: list[float], new: list[float], why: str) -> None:
    assert why in of_rounds([[each] for each in old], [[each] for each in new]).refusal


@pytest.mark.parametrize(
    ("cost", "times", "outcome", "status"),
    [
        ("step", 1.05, "worse", 1),
        ("step", 1.0, "no worse", 0),
        ("step", 0.9, "better", 0),
        ("optimizer", 1.05, "worse", 1),
        ("memory", 1.05, "worse", 1),
        ("first", 1.3, "worse", 1),
        ("import", 1.3, "worse", 1),
        ("import", 1.03, "no worse", 0),
    ],
)
def test_the_outcome_of_each_cost(cost: str, times: float, outcome: str, status: int) -> None:
    samples = raced({cost: times})
    assert outcomes(samples)[cost] == outcome
    assert judge(samples).status == status


def test_noise_between_processes_cannot_be_judged() -> None:
    result = judge(raced({}, spread=0.06))
    assert (result.status, result.verdicts[0].outcome) == (2, RaceOutcome.NOISY)


def test_a_noisy_import_alone_is_no_reason_to_fail() -> None:
    samples = raced({})
    noisy = raced({}, spread=0.5)
    pairs = tuple(
        {side: replace(one, once={**one.once, "import": other[side].once["import"]}) for side, one in pair.items()}
        for pair, other in zip(samples.pairs, noisy.pairs, strict=True)
    )
    assert outcomes(replace(samples, pairs=pairs))["import"] == "too noisy"
    assert judge(replace(samples, pairs=pairs)).status == 0


def test_a_race_that_contradicts_itself_is_refused() -> None:
    twin = judge(raced({"step": 1.05, "twin step": 1.05}))
    assert (twin.status, twin.verdicts[0].outcome) == (2, RaceOutcome.REFUSED)
    assert "two processes of the old version differ" in twin.verdicts[0].why
    yardstick = judge(raced({"step": 1.05, "yardstick": 1.05}))
    assert yardstick.status == 2
    assert {each.outcome.value for each in yardstick.verdicts if each.cost.timed} == {"not judged"}
    assert yardstick.verdicts[-1].outcome is RaceOutcome.EQUAL


def test_another_numpy_is_no_yardstick() -> None:
    result = judge(raced({"yardstick": 1.3}, numpy=("1.26.4", "2.4.6")))
    assert result.status == 0
    assert result.notes == ("NumPy differs (1.26.4 and 2.4.6): its work is no yardstick",)


def test_what_is_shown() -> None:
    samples = raced({"step": 1.05})
    result = judge(samples)
    lines = rendering.table(samples, result).splitlines()
    assert lines[0] == "torch 2.12.1 → 2.13.0, cpu eager, encoder"
    assert any(line.startswith("whole step       worse     5 ms") for line in lines), lines
    assert lines[-1] == "Worse: whole step."
    assert "| whole step | worse | 5 ms |" in rendering.markdown(samples, result)
    assert json.loads(rendering.to_json(samples, result))["costs"]["step"]["outcome"] == "worse"


def test_stored_samples_are_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "race.json.gz"
    write(path, raced({"step": 1.05}))
    assert judge(load(path)) == judge(raced({"step": 1.05}))
    assert main(["race", "--samples", str(path)]) == 1
    assert "Worse: whole step." in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"{", b'{"version": 1}', b"[]"])
def test_damaged_samples_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "race.json").write_bytes(content)
    with pytest.raises(RecordError, match="has no samples of a race"):
        load(tmp_path / "race.json")
