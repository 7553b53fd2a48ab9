"""`conformance race`: its statistic, replays of recorded processes, racing processes, and the command.

The recordings are of the reference (small-mlp, 4 updates in a sample), made by `conformance race` on a machine of two
cores that others used: three equal processes in each set. `quiet`: 16 sets of 240 rounds at a load of 3. `shared`: 24
sets at a load of 9 to 10. `busy`: 13 sets of 80 rounds next to two more processes of the same priority.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

from conformance.cli import main
from conformance.cli.sweep import interpreter, side_of
from conformance.race import FEWEST_PAIRS, NEW, OLD, PAIRS, TWIN, RaceError
from conformance.race.race import (
    COSTS,
    RaceJudgement,
    RaceOutcome,
    Racer,
    RaceSamples,
    SideSamples,
    estimate,
    judge,
    load,
    race,
    start_process,
    write,
)
from conformance.sweep import plan
from conformance.sweep.cell import Commands, NotJudged, Requirements
from conformance.sweep.plan import Release
from results.record.files import RecordError
from tests.support.suite_runs import run_refused

PYTHON = Path(sys.executable)
SIDES = (OLD, NEW, TWIN)
SCRIPT = """
import json, sys
facts = json.loads(sys.argv[1])
print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    work, _, count = line.strip().partition(" ")
    answer = facts.get(work, {"value": 1000 * int(count)})
    if answer == "die":
        sys.exit("the interpreter died")
    if answer == "hang":
        import time; time.sleep(60)
    print(json.dumps(answer), flush=True)
"""
"""A racing process with scripted answers; other work takes a thousand nanoseconds."""

FACTS: dict[str, Any] = {
    "load": {"value": 10**9, "version": "1.0", "numpy": "2.4.6", "place": "cpu eager"},
    "first": {"value": 10**8},
    "kinds": {"kinds": ["step", "optimizer", "yardstick"]},
    "memory": {"value": 2**28},
}


def samples_of(
    ratios: Mapping[str, float], spread: float = 0.004, numpy: tuple[str, str] = ("2.4.6", "2.4.6")
) -> RaceSamples:
    """Samples of eight pairs.

    Args:
        ratios: factors of the new side by cost, or of the twin by "twin COST".
        spread: deviation of logarithms between processes.
    """
    rng = np.random.default_rng(0)

    def factor(side: str, key: str) -> float:
        shift = ratios.get({OLD: "", NEW: key, TWIN: f"twin {key}"}[side], 1.0)
        return float(shift * np.exp(rng.normal(0.0, spread)))

    def sample(side: str) -> SideSamples:
        rounds = {
            key: tuple(2e7 * factor(side, key) * np.exp(rng.normal(0.0, 0.02, 30)))
            for key in ("step", "optimizer", "yardstick")
        }
        return SideSamples(rounds, {key: 1e9 * factor(side, key) for key in ("first", "import", "memory")})

    pairs = tuple({side: sample(side) for side in SIDES} for _ in range(8))
    return RaceSamples("torch", "cpu eager", "encoder", "2.12.1", "2.13.0", numpy, 4, pairs)


def outcomes(samples: RaceSamples) -> dict[str, str]:
    """The outcome of each cost."""
    return {verdict.cost.key: verdict.outcome.value for verdict in judge(samples).verdicts}


def test_estimate_has_the_interval_of_student_over_pairs() -> None:
    logs = [0.00, 0.01, 0.02, 0.03, 0.04]
    short, long = (estimate([[1.0] * rounds] * 5, [[math.exp(log)] * rounds for log in logs]) for rounds in (10, 1000))
    assert short == long
    assert math.isclose(short.estimate, math.exp(0.02), rel_tol=1e-12)
    reach = 4.604094871415897 * np.std(logs, ddof=1) / math.sqrt(5)
    assert math.isclose(short.high, math.exp(0.02 + reach), rel_tol=1e-9)
    assert math.isclose(short.low, math.exp(0.02 - reach), rel_tol=1e-9)
    assert estimate([[1.0] * 10] * 5, [[1.0] * 8 + [50.0, 0.01]] * 5).estimate == 1.0  # disturbed rounds are trimmed


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [([1.0] * 4, [1.0] * 4, "4 pairs"), ([1.0] * 5, [0.0] * 5, "positive"), ([math.nan] * 5, [1.0] * 5, "positive")],
)
def test_estimate_refuses_with_a_reason(old: list[float], new: list[float], reason: str) -> None:
    assert reason in estimate([[value] for value in old], [[value] for value in new]).refusal


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
def test_judge_gives_each_cost_its_outcome(cost: str, times: float, outcome: str, status: int) -> None:
    samples = samples_of({cost: times})
    assert outcomes(samples)[cost] == outcome
    assert judge(samples).status == status


def test_judge_of_noisy_processes_is_too_noisy_unless_only_the_import_is() -> None:
    noisy = judge(samples_of({}, spread=0.06))
    assert (noisy.status, noisy.verdicts[0].outcome) == (2, RaceOutcome.NOISY)
    samples, noise = samples_of({}), samples_of({}, spread=0.5)
    pairs = tuple(
        {side: replace(old, once={**old.once, "import": noisy[side].once["import"]}) for side, old in pair.items()}
        for pair, noisy in zip(samples.pairs, noise.pairs, strict=True)
    )
    assert outcomes(replace(samples, pairs=pairs))["import"] == "too noisy"
    assert judge(replace(samples, pairs=pairs)).status == 0


def test_judge_refuses_a_race_that_contradicts_itself() -> None:
    twin = judge(samples_of({"step": 1.05, "twin step": 1.05}))
    assert (twin.status, twin.verdicts[0].outcome) == (2, RaceOutcome.REFUSED)
    assert "two processes of the old version differ" in twin.verdicts[0].why
    yardstick = judge(samples_of({"step": 1.05, "yardstick": 1.05}))
    assert yardstick.status == 2
    assert {verdict.outcome.value for verdict in yardstick.verdicts if verdict.cost.timed} == {"not judged"}
    assert yardstick.verdicts[-1].outcome is RaceOutcome.EQUAL


def test_judge_of_another_numpy_ignores_the_yardstick() -> None:
    result = judge(samples_of({"yardstick": 1.3}, numpy=("1.26.4", "2.4.6")))
    assert result.status == 0
    assert result.notes == ("NumPy differs (1.26.4 and 2.4.6): its work is no yardstick",)


def test_race_of_stored_samples_prints_their_judgement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, path = samples_of({"step": 1.05}), tmp_path / "race.json.gz"
    write(path, samples)
    assert judge(load(path)) == judge(samples)
    assert main(["race", "--samples", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "torch 2.12.1 → 2.13.0, cpu eager, encoder"
    assert any(line.startswith("whole step       worse     5 ms") for line in lines), lines
    assert lines[-1] == "Worse: whole step."


@pytest.mark.parametrize("content", [b"{", b'{"version": 1}'])
def test_race_of_damaged_samples_is_refused(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "race.json").write_bytes(content)
    assert "has no samples of a race" in run_refused(capsys, "race", "--samples", str(tmp_path / "race.json"))


def replays(name: str, times: float) -> Iterator[RaceJudgement]:
    """A hundred races of recorded processes; `times` multiplies the times of the new version."""
    rng, samples = np.random.default_rng(7), load(Path(__file__).parent / f"{name}.json.gz")

    def slow_down(side: SideSamples) -> SideSamples:
        rounds = {
            key: [value * (1.0 if key == "yardstick" else times) for value in values]
            for key, values in side.rounds.items()
        }
        once = {key: value * (1.0 if key == "memory" else times) for key, value in side.once.items()}
        return SideSamples(rounds, once)

    for _ in range(100):
        sets = [samples.pairs[index] for index in rng.choice(len(samples.pairs), PAIRS, replace=False)]
        pairs = []
        for times_by_side in sets:
            pair = {side: times_by_side[SIDES[index]] for side, index in zip(SIDES, rng.permutation(3), strict=True)}
            pairs.append({**pair, NEW: slow_down(pair[NEW])})
        yield judge(replace(samples, pairs=tuple(pairs)))


@pytest.mark.parametrize("name", ["quiet", "shared", "busy"])
def test_judge_of_equal_versions_gives_at_most_one_false_alarm(name: str) -> None:
    statuses = Counter(result.status for result in replays(name, 1.0))
    assert statuses[1] <= 1
    assert name != "shared" or statuses[0] >= 90


@pytest.mark.parametrize("name", ["quiet", "shared"])
def test_judge_of_five_percent_finds_them(name: str) -> None:
    result = [replay.verdicts[0].outcome for replay in replays(name, 1.05)]
    assert result.count(RaceOutcome.GREW) >= 95


@dataclass(frozen=True)
class ScriptedRacer(Racer):
    answers: str = "{}"

    @property
    def command(self) -> list[str]:
        return [str(self.python), "-I", "-S", "-c", SCRIPT, self.answers]


def make_racer(**changes: Any) -> ScriptedRacer:
    """A side with these answers in addition to the usual ones."""
    return ScriptedRacer(PYTHON, "x", answers=json.dumps(FACTS | changes))


def test_race_has_rounds_of_every_side() -> None:
    slow = make_racer(step={"value": 10**8}, load=FACTS["load"] | {"version": "1.1"})
    samples = race(make_racer(), slow, FEWEST_PAIRS, 6)
    assert (samples.old, samples.new, samples.place, len(samples.pairs)) == ("1.0", "1.1", "cpu eager", FEWEST_PAIRS)
    for pair in samples.pairs:
        lengths = {side: [len(rounds) for rounds in times.rounds.values()] for side, times in pair.items()}
        assert lengths == {side: [6, 2, 2] for side in SIDES}
        assert set(pair[NEW].once) == {cost.key for cost in COSTS if not cost.rounds}
        assert set(pair[NEW].rounds["step"]) == {10**8}
    assert judge(samples).status == 1


def test_race_leaves_out_a_work_that_one_side_lacks() -> None:
    samples = race(make_racer(kinds={"kinds": ["step", "yardstick"]}), make_racer(), 9, 6, limit_s=0.0)
    assert [verdict.cost.key for verdict in judge(samples).verdicts] == ["step", "first", "import", "memory"]
    assert len(samples.pairs) == FEWEST_PAIRS  # no more begin after the limit


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"load": {"refused": "x cannot be imported"}}, "new: load: x cannot be imported"),
        ({"first": "die"}, "new: its process ended: the interpreter died"),
        ({"load": FACTS["load"] | {"place": "cuda eager"}}, "the sides run on cpu eager and cuda eager"),
    ],
)
def test_race_ends_with_a_side_that_cannot_be_measured(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RaceError) as caught:
        race(make_racer(), make_racer(**changes), FEWEST_PAIRS, 6)
    assert str(caught.value).startswith(reason)


def test_start_process_ends_a_process_that_hangs() -> None:
    with start_process("old", make_racer(step="hang")) as process:
        with pytest.raises(RaceError, match="no answer within 0 s"):
            process.ask("step", limit_s=0.05)
        number = process._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_start_process_answers_for_the_reference() -> None:
    with start_process("old", Racer(PYTHON, "reference", "cpu", "", "small-mlp")) as process:
        assert process.ask("load")["place"] == "cpu emulated"
        assert process.value("first") > 0
        assert process.ask("kinds")["kinds"] == ["step", "optimizer", "yardstick"]
        assert all(process.value(kind, 2) > 0 for kind in ("step", "optimizer", "yardstick"))
        assert process.value("memory") > 10 * 2**20


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> list[Requirements]:
    """Environments that are made without installing anything; torch 2.6.0 cannot be made."""
    result: list[Requirements] = []

    def make(_: Path, requirements: Requirements, __: Commands) -> Path:
        if requirements.names[0] == "torch==2.6.0":
            raise NotJudged("no solution", "there is no torch 2.6.0")
        result.append(requirements)
        return Path(requirements.names[0])

    def list_releases(package: str) -> dict[Version, Release]:
        if package != "torch":
            raise RecordError(package, "its releases cannot be listed", "correct the name")
        return {Version(text): Release() for text in ("2.6.0", "2.12.1", "2.13.0")}

    monkeypatch.setattr("conformance.cli.sweep.make_environment", make)
    monkeypatch.setattr(plan, "releases", list_releases)
    return result


def test_interpreter_of_a_version_is_of_an_environment(environments: list[Requirements]) -> None:
    for text, device, mode, path in (
        ("torch==2.12.1", "cpu", "accelerate", Path("torch==2.12.1")),
        (f"reference@{PYTHON}", "auto", "", PYTHON),
        ("torch", "auto", "compile", PYTHON),
    ):
        with interpreter(OLD, side_of(OLD, text, device, mode)) as python:
            assert python == path
    assert environments[0].names[:2] == ("torch==2.12.1", "accelerate")
    refused_side = side_of(OLD, "torch==2.6.0", "cpu", "")
    with pytest.raises(RaceError, match=r"^old: torch-2.6.0-cpu-\w+: there is no torch 2.6.0"):
        interpreter(OLD, refused_side).__enter__()
    assert len(environments) == 1


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ((), "name two versions, such as torch==2.12.1 torch==2.13.0, or samples by --samples"),
        (("nothing", "nothing"), "unknown framework 'nothing'"),
        (("reference",), "got reference and nothing, want two versions of one framework"),
        (("torch==2.12.1", "reference"), "got torch==2.12.1 and reference, want two versions of one framework"),
        (("reference@/x/python", "reference"), "old: /x/python: no such program; name a Python that has"),
        (("torch==2.12.1", "torch@/x/python"), "new: /x/python: no such program; name a Python that has"),
        ((f"torch==2.6.0@{PYTHON}", "torch"), "old: got a version and a Python, want one of them"),
        (("torch==2.5", "torch"), "old: no index has torch 2.5"),
        (("torch==abc", "torch"), "old: torch: got 'abc', want"),
        (("jax==0.9", "jax"), "jax: its releases cannot be listed"),
        (("reference==2", "reference"), "old: nothing is installed for reference; name reference@PYTHON"),
        (("reference", "reference", "--mode", "eagr"), "old: reference: got mode 'eagr', want a mode of reference"),
        (("torch", "torch", "--device", "cpuu"), "old: torch: got device 'cpuu', want cpu, auto or an accelerator"),
        (("reference", "reference", "--pairs", "4"), "--pairs"),
        (("reference", "reference", "--output", "x/y/z"), "--output: there is no folder x/y; make it, or name another"),
        (("reference", "reference", "--samples", "x/y"), "--samples: there is no folder x; make it, or name another"),
    ],
)
def test_race_refuses_in_one_line(
    argv: tuple[str, ...], reason: str, environments: list[Requirements], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in run_refused(capsys, "race", *argv)
    assert environments == []
