"""Scenarios: sides in turn on the same batches, what is judged of them, and a table that only repeats the records."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.scenarios import SCENARIOS, Scenario
from conformance.scenarios.judgement import measurements, traces, verdicts
from conformance.scenarios.launching import FOLDER
from conformance.scenarios.scenario import Setting, Side, accuracy, squared_error
from conformance.scenarios.table import rows
from conformance.scenarios.training import SideResult, train
from fixtures.arrays import Array
from fixtures.layers import Activation, Dense, Head, Heads
from fixtures.model import Batch, Model
from fixtures.recipe import FLOAT16, SGD, DynamicScaling, Recipe, Recompute
from frameworks.contract import Capability, Conventions, Framework
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.files import read
from results.record.folders import listed
from results.record.outcomes import Outcome
from results.record.reading import Record, load
from tests.support.recorded import by_name

PLAIN = Recipe(SGD(0.1))


def _points(size: int, seed: int) -> Batch:
    rng = np.random.default_rng([seed, 3])
    labels = rng.integers(0, 3, size)
    return Batch((np.eye(3)[labels] + 0.3 * rng.standard_normal((size, 3))).astype(np.float32), {"output": labels})


def _setting() -> Setting:
    layers = (Dense(8), Activation("gelu"), Dense(8), Activation("gelu"), Heads((Head("output", 3),)))
    model = Model("small", layers, (3,), (("output", "cross_entropy"),))
    return Setting(model, _points(70, 0), _points(40, 1), "points around three corners")


SMALL = Scenario(
    name="small",
    title="A small one",
    source="this test",
    setting=_setting,
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
    published={("mixed", "time ÷ plain's"): "0.5"},
)


def trained(framework: Framework, scenario: Scenario = SMALL, rounds: int = 30) -> dict[str, SideResult]:
    """What is left of each side, by its label."""
    results = train(framework, scenario, scenario.setting(), rounds, [].append)
    return {one.side.label: one for one in results}


def outcomes(framework: Framework, scenario: Scenario = SMALL, rounds: int = 30) -> dict[str, tuple[Outcome, str]]:
    """Outcome and signature of each side."""
    results = list(trained(framework, scenario, rounds).values())
    judged = verdicts(framework, scenario, scenario.setting(), results, rounds, "again")
    return {verdict.case: (verdict.outcome, verdict.signature) for verdict in judged}


def measured(scenario: Scenario, results: Mapping[str, SideResult]) -> dict[str, Any]:
    """What is measured of a run, by quantity and side."""
    return by_name(measurements(scenario, list(results.values())))


def refusing(*capabilities: Capability) -> ReferenceFramework:
    """A twin of the reference that lacks these, and says so."""

    class Refusing(ReferenceFramework):
        def refusals(self) -> Mapping[Capability, str]:
            return {**super().refusals(), **dict.fromkeys(capabilities, "not here")}

    return Refusing("cpu")


@pytest.fixture(scope="module")
def results() -> dict[str, SideResult]:
    return trained(ReferenceFramework("cpu"))


def test_a_round_is_cut_into_windows_that_hold_each_sample_once() -> None:
    batch = _points(70, 0)
    side = Side("x", PLAIN.replace(accumulation=4), micro=16)
    assert [[len(part) for part in window] for window in side.windows(batch)] == [[16] * 4, [6]]
    assert [len(window) for window in replace(side, whole=True).windows(batch)] == [4]
    inputs = np.concatenate([part.inputs for window in side.windows(batch) for part in window])
    np.testing.assert_array_equal(inputs, batch.inputs)
    assert side.needs(batch) == (Capability.PARTIAL_WINDOW,)
    assert replace(side, whole=True).needs(batch) == side.needs(batch.part(0, 64)) == ()


def test_every_side_trains_on_the_same_batches_from_the_same_weights(results: Mapping[str, SideResult]) -> None:
    assert results["plain"].losses == results["segments"].losses
    assert results["flushed"].losses[:4] == pytest.approx(results["plain"].losses[:4], rel=2**-22)
    assert (len(results["plain"].losses), len(results["flushed"].losses), len(results["whole"].losses)) == (30, 30, 24)
    assert results["segments"].distance == 0.0
    assert 0.0 < (results["whole"].distance or 0.0) < 1.0
    assert results["plain"].distance is None


def test_what_is_kept_of_a_run(results: Mapping[str, SideResult]) -> None:
    costs = measured(SMALL, results)
    assert costs["saved bytes/segments"].samples < costs["saved bytes/plain"].samples
    assert costs["seconds a round/mixed"].control == tuple(results["plain"].seconds)
    assert len(costs["seconds a round/whole"].samples) == 24
    drawn = by_name(traces(SMALL, list(results.values())))
    assert drawn["small/mixed"].curves.keys() == {"loss", "scale"}
    assert drawn["small/plain"].curves["loss"] == tuple(results["plain"].losses)


def test_a_side_that_never_had_a_round_has_no_times() -> None:
    seconds, nothing = [1.0, 1.0], [math.nan, math.nan]
    plain, whole = (
        SideResult(SMALL.sides[0], seconds=seconds),
        SideResult(SMALL.sides[-1], seconds=nothing, control=seconds),
    )
    assert measurements(SMALL, [plain, whole]) == ()
    assert measurements(SMALL, [plain, SideResult(SMALL.sides[-1], seconds=seconds, control=seconds)]) != ()


def test_a_right_framework_passes_every_side() -> None:
    assert set(outcomes(ReferenceFramework("cpu")).values()) == {(Outcome.PASS, "")}


class Still(ReferenceFramework):
    """Its updates move nothing."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        return super().trainer(model, recipe.replace(optimizer=SGD(0.0)), weights)


class Raising(ReferenceFramework):
    """Making a trainer that accumulates is beyond it, though it does not say so."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.accumulation > 1:
            raise RuntimeError("no room")
        return super().trainer(model, recipe, weights)


class Restarting(ReferenceFramework):
    """With recomputation it starts from other weights."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        other = recipe if recipe.recompute is None else recipe.replace(seed=1)
        return super().trainer(model, other, weights)


class Compiled(Restarting):
    """The same, and says that a compiler may round."""

    def conventions(self) -> Conventions:
        return replace(super().conventions(), compiled=True)


def test_a_framework_that_does_not_learn_is_seen() -> None:
    assert {result for result, _ in outcomes(Still("cpu")).values()} == {Outcome.FAIL}


@pytest.mark.parametrize(
    ("losses", "quality", "signature"),
    [
        ((2.0, 1.0), 0.1, "learned-nothing"),
        ((1.0, 2.0), 0.9, "loss-did-not-fall"),
        ((2.0, float("nan")), 0.9, "loss-did-not-fall"),
    ],
)
def test_a_run_has_to_lower_its_loss_and_to_answer_well(
    losses: tuple[float, ...], quality: float, signature: str
) -> None:
    side = SMALL.sides[0]
    ended = SideResult(side, losses=list(losses), skipped=[False, False], quality=quality)
    (verdict,) = verdicts(ReferenceFramework("cpu"), SMALL, _setting(), [ended], 30, "again")
    assert (verdict.outcome, verdict.signature) == (Outcome.FAIL, signature)


def test_a_side_that_promises_the_same_bits_keeps_them() -> None:
    result = outcomes(Restarting("cpu"))
    assert result["segments"] == (Outcome.FAIL, "parameters-differ")
    assert result["mixed"][0] is Outcome.PASS
    assert outcomes(Restarting("cpu"), rounds=4)["segments"][0] is Outcome.FAIL


def test_where_a_compiler_rounds_the_same_bits_are_not_asked_for() -> None:
    assert outcomes(Compiled("cpu"))["segments"][0] is Outcome.PASS


def test_a_refusal_or_an_error_ends_one_side_only(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = refusing(Capability.O1_FLOAT16, Capability.PARTIAL_WINDOW)
    monkeypatch.setattr(framework, "attempts", lambda: {Capability.O1_FLOAT16: lambda: False})
    result = outcomes(framework)
    assert result["mixed"] == (Outcome.UNSUPPORTED, "precision.O1-float16")
    assert result["flushed"] == (Outcome.NOT_OFFERED, "accumulation.partial-window")
    assert result["whole"][0] is Outcome.PASS
    result = outcomes(Raising("cpu"))
    assert result["flushed"] == (Outcome.ERROR, "raises-RuntimeError")
    assert result["plain"][0] is Outcome.PASS


def test_too_short_a_run_is_not_judged_by_what_it_learned() -> None:
    result = outcomes(Still("cpu"), rounds=4)
    assert result["plain"][0] is Outcome.ABSTAIN
    assert result["segments"][0] is Outcome.PASS


def test_the_best_constant_answer_is_what_a_quality_is_held_against() -> None:
    labels = np.array([0, 1, 1, 1])
    batch = Batch(np.zeros((4, 1)), {"output": labels})
    quality = accuracy()
    assert quality.constant(batch) == 0.75
    assert quality.of({"output": np.eye(2)[[0, 1, 1, 0]]}, batch) == 0.75
    values = Batch(np.zeros((2, 1)), {"sin": np.array([[1.0], [3.0]]), "cos": np.array([[0.0], [0.0]])})
    error = squared_error()
    assert error.constant(values) == 1.0
    assert error.of({"sin": np.array([[1.0], [1.0]]), "cos": np.zeros((2, 1))}, values) == 2.0


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_scenario_is_well_formed(scenario: Scenario) -> None:
    labels = [side.label for side in scenario.sides]
    assert len(set(labels)) == len(labels) > 1
    assert all(side.beside in ("", *labels) for side in scenario.sides)
    assert {label for label, _ in scenario.published} <= set(labels)
    assert {stretch[0] for stretch in scenario.stretches} == {scenario.sides[0]}
    assert not scenario.sides[0].ranks
    setting = scenario.setting()
    assert scenario.learns_in <= scenario.rounds_on("cpu", "eager", setting) <= scenario.rounds(setting)


def committed(name: str) -> list[Record]:
    return [load(path) for path in listed(FOLDER / name)]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_what_the_document_says_stands_in_a_row_that_has_numbers(scenario: Scenario) -> None:
    measured = {(row.side, row.quantity) for row in rows(scenario, committed(scenario.name)) if {*row.cells} - {"–"}}
    assert scenario.published.keys() <= measured


def test_the_committed_records_are_whole_runs_without_this_machines_folders() -> None:
    for path in FOLDER.rglob("*.json.gz"):
        record = load(path)
        assert record.selection == f"--scenario {path.parent.name}"
        assert not any(verdict.outcome.bad for verdict in record.verdicts), path
        assert not re.search(r"/(tmp|home|work|root|usr)/", read(path).decode("utf-8")), path


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_every_framework_with_a_part_in_a_scenario_has_a_committed_record(scenario: Scenario) -> None:
    taking_part = {*scenario.modes} if scenario.only else {"jax", "paddle", "reference", "tf", "torch"}
    on_cpus = [record for record in committed(scenario.name) if record.series.device == "cpu"]
    assert sorted(record.series.framework for record in on_cpus) == sorted(taking_part)


def test_the_committed_records_took_less_than_twenty_minutes_together() -> None:
    records = [record for name in SCENARIOS for record in committed(name) if record.series.device == "cpu"]
    assert 0 < sum(record.duration_s for record in records) < 1200
