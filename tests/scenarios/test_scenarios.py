"""Scenarios: interleaved sides, their verdicts and measurements, the command, and the committed records."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from conformance.scenarios import definitions
from conformance.scenarios.definitions import SCENARIOS, rows
from conformance.scenarios.scenario import (
    MODEL,
    OFFLOADED,
    QuantizedSide,
    Scenario,
    Setting,
    Side,
    SideRun,
    accuracy,
    measurements,
    squared_error,
    train,
    verdict,
)
from fixtures.arrays import Array
from fixtures.model import Activation, Batch, Dense, Head, Heads, Model
from fixtures.recipe import FLOAT16, SGD, Adam, DynamicScaling, Offload, Ranks, Recipe, Recompute, Sharding
from frameworks.base import Arguments
from frameworks.contract import Capability, Conventions, Framework, RankFailed
from frameworks.reference import ReferenceFramework
from frameworks.reference.distributed import ReferenceRankGroup
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.files import read
from results.record.folders import list_records
from results.record.model import Outcome
from results.record.reading import Record, load
from tests.support.recorded import by_name
from tests.support.suite_runs import call_command, run_refused

PLAIN, ADAM = Recipe(SGD(0.1)), Recipe(Adam(2.0**-4))
PASS = (Outcome.PASS, "")
FAIL, ABSTAIN, DIFFERENT = (
    (Outcome.FAIL, "loss-did-not-fall"),
    (Outcome.ABSTAIN, ""),
    (Outcome.FAIL, "parameters-differ"),
)


def points(size: int, seed: int) -> Batch:
    rng = np.random.default_rng([seed, 3])
    labels = rng.integers(0, 3, size)
    return Batch((np.eye(3)[labels] + 0.3 * rng.standard_normal((size, 3))).astype(np.float32), {"output": labels})


def setting() -> Setting:
    layers = (Dense(8), Activation("gelu"), Dense(8), Activation("gelu"), Heads((Head("output", 3),)))
    model = Model("small", layers, (3,), (("output", "cross_entropy"),))
    return Setting(model, points(70, 0), points(40, 1), "points around three corners")


SMALL = Scenario(
    name="small",
    title="A small one",
    source="this test",
    setting=setting,
    sides=(
        Side("plain", PLAIN),
        Side("segments", PLAIN.replace(recompute=Recompute(2)), equal=True),
        Side("mixed", PLAIN.replace(precision=FLOAT16, scaling=DynamicScaling())),
        Side("flushed", PLAIN.replace(accumulation=2), micro=8),
        Side("whole", PLAIN.replace(accumulation=2), micro=8, whole=True, beside="flushed"),
    ),
    batch=16,
    epochs=6,
    learns_in=20,
    quality=accuracy(),
)


def with_ranks(level: Sharding, *counts: int) -> Scenario:
    sides = (Side(f"{count} ranks", ADAM.replace(ranks=Ranks(count, level))) for count in counts)
    return replace(SMALL, sides=(Side("one process", ADAM), *sides))


def with_offload(to: Literal["host", "disk"] = "host") -> Scenario:
    sides = (Side(kind, ADAM.replace(offload=Offload((kind,), to)), equal=True) for kind in OFFLOADED)
    return replace(SMALL, sides=(Side("one device", ADAM), *sides))


SHARDED = with_ranks("full", 2, 4)
QUANTIZED = replace(
    SMALL,
    sides=(
        SMALL.sides[0],
        QuantizedSide("eight bits", PLAIN, technique="weight-int8"),
        QuantizedSide("four bits", PLAIN, technique="weight-int4"),
    ),
)


def run(scenario: Scenario, framework: Framework | None = None, rounds: int = 30) -> dict[str, SideRun]:
    """The runs of a scenario's sides, by label."""
    subject = framework or ReferenceFramework("cpu")
    runs = train(subject, scenario, scenario.setting(), rounds, lambda numbers, _: numbers)
    return {side_run.side.label: side_run for side_run in runs}


def outcomes(scenario: Scenario, framework: Framework | None = None, rounds: int = 30) -> dict[str, tuple[str, str]]:
    """Outcome and signature of each side."""
    runs = run(scenario, framework, rounds)
    result = {label: verdict(scenario, side_run, rounds, "again") for label, side_run in runs.items()}
    return {label: (judged.outcome, judged.signature) for label, judged in result.items()}


def measure_runs(scenario: Scenario, runs: Mapping[str, SideRun]) -> dict[str, Any]:
    """Measurements by quantity and side."""
    return by_name(measurements(scenario, [*runs.values()]))


def refusing(capability: Capability) -> ReferenceFramework:
    """A reference that refuses a capability."""

    class Refusing(ReferenceFramework):
        def refusals(self) -> Mapping[Capability, str]:
            return {**super().refusals(), capability: "not here"}

    return Refusing("cpu")


@pytest.fixture(scope="module")
def runs() -> dict[str, SideRun]:
    return run(SMALL)


@pytest.fixture(scope="module")
def sharded() -> dict[str, SideRun]:
    return run(SHARDED)


def test_windows_of_a_round_hold_each_sample_once() -> None:
    batch, side = points(70, 0), Side("x", PLAIN.replace(accumulation=4), micro=16)
    assert [[len(part) for part in window] for window in side.windows(batch)] == [[16] * 4, [6]]
    assert [len(window) for window in replace(side, whole=True).windows(batch)] == [4]
    inputs = np.concatenate([part.inputs for window in side.windows(batch) for part in window])
    np.testing.assert_array_equal(inputs, batch.inputs)
    assert side.needs(batch) == (Capability.PARTIAL_WINDOW,)
    assert replace(side, whole=True).needs(batch) == side.needs(batch.part(0, 64)) == ()


def test_train_gives_every_side_the_same_batches_and_weights(runs: Mapping[str, SideRun]) -> None:
    assert runs["plain"].losses == runs["segments"].losses
    assert runs["flushed"].losses[:4] == pytest.approx(runs["plain"].losses[:4], rel=2**-22)
    assert (len(runs["plain"].losses), len(runs["flushed"].losses), len(runs["whole"].losses)) == (30, 30, 24)
    assert runs["segments"].parameter_distance == 0.0
    assert 0.0 < (runs["whole"].parameter_distance or 0.0) < 1.0
    assert runs["plain"].parameter_distance is None


def test_measurements_have_bytes_and_paired_times(runs: Mapping[str, SideRun]) -> None:
    costs = measure_runs(SMALL, runs)
    assert costs["saved bytes/segments"].samples < costs["saved bytes/plain"].samples
    assert costs["seconds a round/mixed"].control == tuple(runs["plain"].seconds)
    assert len(costs["seconds a round/whole"].samples) == 24  # without the rounds that fill no window


class WithoutUpdates(ReferenceFramework):
    """Its updates change no parameter."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        return super().trainer(model, recipe.replace(optimizer=SGD(0.0)), weights)


class Raising(ReferenceFramework):
    """It declares accumulation and raises where a recipe accumulates."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.accumulation > 1:
            raise RuntimeError("no memory")
        return super().trainer(model, recipe, weights)


class Restarting(ReferenceFramework):
    """Recomputation or offload changes the initial weights."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        changed = recipe.recompute is not None or recipe.offload is not None
        return super().trainer(model, recipe.replace(seed=1) if changed else recipe, weights)


class CompiledRestarting(Restarting):
    """The same, with the convention that a compiler may round."""

    def conventions(self) -> Conventions:
        return replace(super().conventions(), compiled=True)


class DyingRankGroup(ReferenceRankGroup):
    """One of four ranks is killed in the third update."""

    def apply(self) -> tuple[Any, ...]:
        if self.count == 4 and self.first.steps == 2:
            raise RankFailed("rank 1 was ended by SIGKILL")
        return super().apply()


class Dying(ReferenceFramework):
    rank_group_class = DyingRankGroup


@pytest.mark.parametrize("scenario", [SMALL, SHARDED, with_offload(), with_offload("disk"), QUANTIZED])
def test_verdict_of_the_reference_passes(scenario: Scenario) -> None:
    assert outcomes(scenario) == dict.fromkeys(scenario.labels, PASS)


@pytest.mark.parametrize(
    ("framework", "scenario", "rounds", "expected"),
    [
        (WithoutUpdates, SMALL, 30, dict.fromkeys(SMALL.labels, FAIL)),
        (WithoutUpdates, SMALL, 4, {"plain": ABSTAIN, "segments": PASS}),
        (Raising, SMALL, 30, {"flushed": (Outcome.ERROR, "raises-RuntimeError"), "plain": PASS}),
        (Restarting, SMALL, 30, {"segments": DIFFERENT, "mixed": PASS}),
        (Restarting, SMALL, 4, {"segments": DIFFERENT}),
        (CompiledRestarting, SMALL, 30, {"segments": PASS}),
        (CompiledRestarting, with_offload(), 30, {"one device": PASS, **dict.fromkeys(OFFLOADED, DIFFERENT)}),
        (CompiledRestarting, with_offload(), 2, {"one device": ABSTAIN, **dict.fromkeys(OFFLOADED, DIFFERENT)}),
        (Dying, SHARDED, 30, {"4 ranks": (Outcome.ERROR, "raises-RankFailed"), "2 ranks": PASS}),
    ],
)
def test_verdict_of_a_fault_fails_its_sides_alone(
    framework: type[Framework], scenario: Scenario, rounds: int, expected: dict[str, tuple[Outcome, str]]
) -> None:
    result = outcomes(scenario, framework("cpu"), rounds)
    assert {label: result[label] for label in expected} == expected


@pytest.mark.parametrize(
    ("capability", "scenario", "refused", "unaffected"),
    [
        (Capability.PARTIAL_WINDOW, SMALL, "flushed", "whole"),
        (Capability.OFFLOAD_ACTIVATIONS, with_offload(), "activations", "optimizer"),
        (Capability.RANKS_FULL, SHARDED, "2 ranks", "one process"),
        (Capability.WEIGHT_INT4, QUANTIZED, "four bits", "eight bits"),
    ],
)
def test_verdict_of_a_refusal_is_of_its_side_alone(
    capability: Capability, scenario: Scenario, refused: str, unaffected: str
) -> None:
    result = outcomes(scenario, refusing(capability))
    assert (result[refused], result[unaffected]) == ((Outcome.NOT_OFFERED, capability.value), PASS)


@pytest.mark.parametrize(
    ("losses", "quality", "signature"),
    [
        ((2.0, 1.0), 0.1, "learned-nothing"),
        ((1.0, 2.0), 0.9, "loss-did-not-fall"),
        ((2.0, math.nan), 0.9, "loss-did-not-fall"),
    ],
)
def test_verdict_of_a_side_that_learns_nothing_fails(losses: tuple[float, ...], quality: float, signature: str) -> None:
    result = SideRun(ReferenceFramework("cpu"), setting(), SMALL.sides[0], losses=[*losses], quality=quality)
    judged = verdict(SMALL, result, 30, "again")
    assert (judged.outcome, judged.signature) == (Outcome.FAIL, signature)


def test_quality_constant_is_the_best_answer_without_inputs() -> None:
    labels = np.array([0, 1, 1, 1])
    batch = Batch(np.zeros((4, 1)), {"output": labels})
    assert accuracy().constant(batch) == 0.75
    assert accuracy().measure({"output": np.eye(2)[[0, 1, 1, 0]]}, batch) == 0.75
    values = Batch(np.zeros((2, 1)), {"sin": np.array([[1.0], [3.0]]), "cos": np.array([[0.0], [0.0]])})
    assert squared_error().constant(values) == 1.0
    assert squared_error().measure({"sin": np.array([[1.0], [1.0]]), "cos": np.zeros((2, 1))}, values) == 2.0


class OneWorkerGroup(ReferenceRankGroup):
    """Ranks that end when ranks of another number start, as processes do."""

    count_now: ClassVar[int] = 0

    def __init__(self, model: Model, recipe: Recipe, *arguments: Any) -> None:
        super().__init__(model, recipe, *arguments)
        OneWorkerGroup.count_now = self.count

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        if self.count != OneWorkerGroup.count_now:
            raise RankFailed("rank group has terminated")
        return super().ask(verb, arguments)

    def apply(self) -> tuple[Any, ...]:
        self.all("state")
        return super().apply()


class OneWorkerGroupFramework(ReferenceFramework):
    rank_group_class = OneWorkerGroup


def test_train_asks_no_rank_of_an_earlier_stretch(sharded: Mapping[str, SideRun]) -> None:
    result = run(SHARDED, OneWorkerGroupFramework("cpu"))
    assert [side_run.error for side_run in result.values()] == [None] * 3
    assert [side_run.losses for side_run in result.values()] == [side_run.losses for side_run in sharded.values()]


def test_train_with_ranks_follows_one_process_and_its_own_control(sharded: Mapping[str, SideRun]) -> None:
    costs = measure_runs(SHARDED, sharded)
    for label in ("2 ranks", "4 ranks"):
        assert sharded[label].losses == pytest.approx(sharded["one process"].losses, rel=1e-3)
        assert 0.0 < (sharded[label].parameter_distance or 0.0) < 0.01
        assert len(costs[f"seconds a round/{label}"].control) == 30
    assert costs["seconds a round/2 ranks"].control == tuple(sharded["one process"].seconds)
    assert costs["seconds a round/4 ranks"].control != tuple(sharded["one process"].seconds)


def test_train_without_trained_sides_does_not_repeat_the_control() -> None:
    rounds: list[range] = []

    def watch(numbers: range, _: str) -> range:
        rounds.append(numbers)
        return numbers

    result = train(refusing(Capability.RANKS_FULL), SHARDED, SHARDED.setting(), 3, watch)
    assert rounds == [range(3)]
    assert [len(side_run.losses) for side_run in result] == [3, 0, 0]


@pytest.mark.parametrize("level", ["replicated", "gradients", "full"])
def test_measurements_of_ranks_are_bytes_of_the_fullest_one(level: Sharding) -> None:
    """On four ranks the fullest one holds 1 of 3 rows of a kernel, or 2 of 8."""
    scenario = with_ranks(level, 4)
    costs = measure_runs(scenario, run(scenario, rounds=2))
    shapes = list(setting().model.parameter_shapes().values())
    total = 4 * sum(int(np.prod(shape)) for shape in shapes)
    part = 4 * sum(-(-shape[0] // 4) * int(np.prod(shape[1:])) for shape in shapes)
    for kind, copies in (("parameter", 1), ("gradient", 1), ("optimizer", 2)):
        share = part if kind in Ranks(4, level).sharded else total
        assert costs[f"{kind} bytes/one process"].samples == (float(copies * total),)
        assert costs[f"{kind} bytes/4 ranks"].samples == (float(copies * share),)
    assert costs["gradients reduced a window/4 ranks"].samples == (float(len(shapes)),)
    assert "saved bytes/one process" not in costs


@pytest.mark.parametrize("to", ["host", "disk"])
def test_measurements_of_offload_are_bytes_of_the_control(to: Literal["host", "disk"]) -> None:
    scenario = with_offload(to)
    costs = measure_runs(scenario, run(scenario, rounds=2))
    total = sum(4 * int(np.prod(shape)) for shape in setting().model.parameter_shapes().values())
    assert costs["parameter bytes/one device"].samples == costs["parameter bytes away/parameters"].samples == (total,)
    assert (
        costs["optimizer bytes/one device"].samples == costs["optimizer bytes away/optimizer"].samples == (2 * total,)
    )
    assert costs["activation bytes away/activations"].samples > costs["saved bytes/one device"].samples
    assert len([name for name in costs if " away/" in name]) == 3
    once, thrice = (run(scenario, rounds=rounds)["activations"].counts for rounds in (1, 3))
    assert once == thrice  # bytes of one update


def test_train_of_quantized_sides_quantizes_the_first_one() -> None:
    plain, eight, four = run(QUANTIZED).values()
    assert not eight.losses
    assert 0 < (eight.output_distance or 0.0) < (four.output_distance or 0.0)
    assert four.counts[MODEL] < eight.counts[MODEL] < plain.counts[MODEL]
    useless = verdict(QUANTIZED, replace(eight, quality=0.1), 30, "again")
    assert useless.signature == "learned-nothing"
    assert [check.what for check in useless.checks] == ["accuracy", "distance from plain's outputs"]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_scenarios_are_well_formed(scenario: Scenario) -> None:
    assert len(set(scenario.labels)) == len(scenario.labels) > 1
    assert {scenario.base(side) for side in scenario.sides} <= set(scenario.labels)
    assert {label for label, _ in scenario.published} <= set(scenario.labels)
    assert not scenario.sides[0].ranks
    prepared = scenario.setting()
    assert scenario.learns_in <= scenario.rounds_on("cpu", "eager", prepared) <= scenario.rounds(prepared)


def load_committed_records(name: str) -> dict[Path, Record]:
    return {path: load(path) for path in list_records(definitions.FOLDER / name)}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_scenarios_have_a_committed_record_of_every_framework(scenario: Scenario) -> None:
    records = load_committed_records(scenario.name)
    frameworks = [record.series.framework for record in records.values() if record.series.device == "cpu"]
    assert sorted(frameworks) == sorted(
        scenario.modes if scenario.only else ("jax", "paddle", "reference", "tf", "torch")
    )
    with_numbers = {
        (row.side, row.quantity) for row in rows(scenario, [*records.values()]) if {*row.cells} - {definitions.NONE}
    }
    assert scenario.published.keys() <= with_numbers
    for path, record in records.items():
        assert record.selection == f"--scenario {scenario.name}"
        assert not any(verdict.outcome.bad for verdict in record.verdicts), path
        assert not re.search(r"/(tmp|home|work|root|usr)/", read(path).decode("utf-8")), path


@pytest.mark.parametrize(
    "name", ["segments", *(pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS if name != "segments")]
)
def test_run_with_a_scenario_writes_a_record_and_shows_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "FOLDER", tmp_path)
    scenario = SCENARIOS[name]
    if scenario.only:
        assert scenario.only in call_command("run", "--scenario", name, "reference").errors
        return
    result = call_command("run", "--scenario", name, "--rounds", "3", "reference")
    assert result.status == 0, result.lines
    record = load(tmp_path / name / "reference-1-cpu-emulated.json.gz")
    assert record.selection.startswith(f"--scenario {name}")
    assert {verdict.case: verdict.outcome for verdict in record.verdicts} == {
        side.label: Outcome.PASS if side.equal else Outcome.ABSTAIN for side in scenario.sides
    }
    assert {trace.case for trace in record.traces} == {
        side.label for side in scenario.sides if side not in scenario.quantized
    }
    assert re.search(r"[23] rounds of [\d,]+ samples, of ", result.output)
    for row in rows(scenario, [record]):
        assert row.cells != (definitions.NONE,) or (row.side, row.quantity) in scenario.published


def test_rows_repeat_the_numbers_of_the_record() -> None:
    record = next(r for r in load_committed_records("segments").values() if r.series.framework == "torch")
    costs, scenario = by_name(record.measurements), SCENARIOS["segments"]
    saved = costs["saved bytes/two segments"]
    changed = tuple(replace(cost, samples=(12345.0,)) if cost is saved else cost for cost in record.measurements)
    cells = {
        (row.side, row.quantity): (row.document, *row.cells)
        for row in rows(scenario, [record, replace(record, measurements=changed)])
    }
    share = 12345.0 / costs["saved bytes/plain"].samples[0]
    assert cells["two segments", "bytes held"] == ("", f"{saved.samples[0]:,.0f}", "12,345")
    assert cells["two segments", "bytes ÷ plain's"][::2] == ("0.4 to 0.5", f"{share:.3g}")
    text = definitions.markdown(scenario, [record, replace(record, notes=("another",))])
    assert "- torch eager: another" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scenario", "sinus", "reference"), "no scenario 'sinus': one of sincos, segments"),
        (("--scenario", "segments"), "a scenario takes one FRAMEWORK"),
        (("--scenario", "segments", "reference", "torch"), "a scenario takes one FRAMEWORK"),
        (("--scenario", "segments", "reference", "--ways", "clip.two-calls"), "a scenario takes one FRAMEWORK"),
        (("--scenario", "segments", "caffe"), "unknown framework 'caffe'"),
        (("--scenario", "graph-rewrite", "reference"), "no other framework rewrites a float32 graph"),
        (("--scenario", "segments", "--mode", "fast", "reference"), "reference has no mode 'fast': one of emulated"),
        (("--scenario", "segments", "--device", "tpu", "reference"), "reference sees no device 'tpu'"),
        (("--scenario", "segments", "tests.nowhere:Class"), "cannot be imported"),
        (("--rounds", "3", "reference"), "--rounds is for scenarios; name one with --scenario"),
        ((), "Missing argument 'FRAMEWORK'"),
        (("reference", "--mode", ","), "--mode: got ',', want names with commas between them"),
    ],
)
def test_run_refuses_in_one_line(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in run_refused(capsys, "run", *arguments)


def test_run_with_a_failing_side_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "FOLDER", tmp_path)
    result = call_command("run", "--scenario", "segments", "--rounds", "3", "tests.scenarios.test_scenarios:Restarting")
    assert result.status == 1, result.lines
    assert "fail: " in result.output
    assert "parameters-differ" in read(next(tmp_path.rglob("*.json.gz"))).decode("utf-8")
