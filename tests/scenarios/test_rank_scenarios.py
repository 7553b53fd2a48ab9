"""Scenarios with ranks: ranks of one number at a time, the control next to each, and what every rank holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance.scenarios import SCENARIOS, Scenario
from conformance.scenarios.scenario import Side
from conformance.scenarios.table import rows
from conformance.scenarios.training import SideResult, train
from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import SGD, Adam, Ranks, Recipe, Sharding
from frameworks.base import Arguments
from frameworks.contract import Capability, RankFailed, Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from results.record.outcomes import Outcome
from results.record.reading import load
from tests.scenarios.test_run import conformance
from tests.scenarios.test_scenarios import SMALL, measured, outcomes, refusing, trained
from tests.support.recorded import by_name

PLAIN = Recipe(Adam(2.0**-4))
OF_RANKS = ("ddp", "shard-grad-op", "fsdp")


def small(level: Sharding, *counts: int) -> Scenario:
    """The small scenario with ranks in the place of its sides."""
    with_ranks = (Side(f"{count} ranks", PLAIN.replace(ranks=Ranks(count, level))) for count in counts)
    return replace(SMALL, name="small-ranks", sides=(Side("one place", PLAIN), *with_ranks), published={})


SHARDED = small("full", 2, 4)


@pytest.fixture(scope="module")
def results() -> dict[str, SideResult]:
    return trained(ReferenceFramework("cpu"), SHARDED)


def test_sides_of_another_number_of_ranks_are_a_stretch_of_their_own() -> None:
    sides = [[side.label for side in stretch] for stretch in SHARDED.stretches]
    assert sides == [["one place", "2 ranks"], ["one place", "4 ranks"]]
    assert SMALL.stretches == (SMALL.sides,)
    mixed = replace(SHARDED, sides=(*SHARDED.sides, Side("again", PLAIN), Side("two more", SHARDED.sides[1].recipe)))
    sides = [[side.label for side in stretch] for stretch in mixed.stretches]
    assert sides == [["one place", "2 ranks", "two more"], ["one place", "4 ranks"], ["one place", "again"]]


@pytest.mark.parametrize("name", OF_RANKS)
def test_the_control_of_a_scenario_with_ranks_is_one_place(name: str) -> None:
    assert [side.ranks for side in SCENARIOS[name].sides] == [0, 2, 4]


def test_every_round_of_every_stretch_is_counted_once() -> None:
    rounds: list[int] = []
    train(ReferenceFramework("cpu"), SHARDED, SHARDED.setting(), 3, rounds.append)
    assert rounds == [1, 2, 3, 4, 5, 6]


def test_the_control_is_not_trained_again_next_to_nothing() -> None:
    rounds: list[int] = []
    result = train(refusing(Capability.RANKS_FULL), SHARDED, SHARDED.setting(), 3, rounds.append)
    assert rounds == [1, 2, 3]
    assert [len(one.losses) for one in result] == [3, 0, 0]


class OneWorkerGroup(ReferenceRankGroup):
    """Ranks that end when others of another number are made, as those of processes do."""

    living: ClassVar[int] = 0

    def __init__(self, model: Model, recipe: Recipe, *given: Any) -> None:
        super().__init__(model, recipe, *given)
        OneWorkerGroup.living = self.count

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        if self.count != OneWorkerGroup.living:
            raise RankFailed("rank group has terminated")
        return super().ask(verb, given)

    def apply(self) -> tuple[Any, ...]:
        self.all("state")
        return super().apply()


class LikeProcesses(ReferenceFramework):
    """Its ranks are those of one crew at a time."""

    rank_group_class = OneWorkerGroup


def test_no_rank_is_asked_once_ranks_of_another_number_have_begun(results: Mapping[str, SideResult]) -> None:
    result = trained(LikeProcesses("cpu"), SHARDED)
    assert [one.error for one in result.values()] == [None] * 3
    assert [one.losses for one in result.values()] == [one.losses for one in results.values()]
    rank_group = LikeProcesses("cpu").rank_group(SHARDED.setting().model, SHARDED.sides[1].recipe)
    OneWorkerGroup.living = 4
    with pytest.raises(RankFailed):
        rank_group.states()


def test_ranks_train_as_one_place_does(results: Mapping[str, SideResult]) -> None:
    assert list(results) == ["one place", "2 ranks", "4 ranks"]
    for label in ("2 ranks", "4 ranks"):
        assert results[label].losses == pytest.approx(results["one place"].losses, rel=1e-3)
        assert 0.0 < (results[label].distance or 0.0) < 0.01
    assert set(outcomes(ReferenceFramework("cpu"), SHARDED).values()) == {(Outcome.PASS, "")}


def test_the_control_of_times_is_one_place_in_the_same_stretch(results: Mapping[str, SideResult]) -> None:
    costs = measured(SHARDED, results)
    assert costs["seconds a round/2 ranks"].control == tuple(results["one place"].seconds)
    control = costs["seconds a round/4 ranks"].control
    assert len(control) == len(costs["seconds a round/4 ranks"].samples) == 30
    assert control != tuple(results["one place"].seconds)


@pytest.mark.parametrize("level", ["replicated", "gradients", "full"])
def test_what_a_rank_holds_is_that_of_the_rank_that_holds_most(level: Sharding) -> None:
    """Rows of 3 and 8 on four ranks: of a kernel the first ranks hold 1 of 3 rows, or 2 of 8, and so on."""
    scenario = small(level, 4)
    costs = measured(scenario, trained(ReferenceFramework("cpu"), scenario, 2))
    shapes = list(scenario.setting().model.parameter_shapes().values())
    whole = 4 * sum(int(np.prod(shape)) for shape in shapes)
    part = 4 * sum(-(-shape[0] // 4) * int(np.prod(shape[1:])) for shape in shapes)
    for kind, copies in (("parameter", 1), ("gradient", 1), ("optimizer", 2)):
        share = part if kind in Ranks(4, level).sharded else whole
        assert costs[f"{kind} bytes/one place"].samples == (float(copies * whole),)
        assert costs[f"{kind} bytes/4 ranks"].samples == (float(copies * share),)
    assert costs["gradients reduced a window/4 ranks"].samples == (float(len(shapes)),)
    assert "saved bytes/one place" not in costs


class HoldingAll(ReferenceFramework):
    """It holds whole copies, whatever is to be sharded, and nobody counts what it reduces."""

    class rank_group_class(ReferenceRankGroup):  # noqa: N801 - it is the attribute
        def sharded(self, kind: str) -> bool:
            return False

    def refusals(self) -> Mapping[Capability, str]:
        return {**super().refusals(), Capability.RANKS_COLLECTIVES: "nobody counts"}


def test_a_framework_that_shards_nothing_shows_in_the_bytes() -> None:
    costs = measured(SHARDED, trained(HoldingAll("cpu"), SHARDED, 2))
    assert costs["parameter bytes/4 ranks"].samples == costs["parameter bytes/one place"].samples
    assert not any(name.startswith("gradients reduced") for name in costs)


class SecondFails(ReferenceFramework):
    """The second run in one place is beyond it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.made = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        if recipe.ranks is None:
            self.made += 1
            if self.made == 2:
                raise RuntimeError("no room")
        return super().trainer(model, recipe, weights)


class DyingRankGroup(ReferenceRankGroup):
    """Of four ranks one dies in the third update."""

    def apply(self) -> tuple[Any, ...]:
        if self.count == 4 and self.first.steps == 2:
            raise RankFailed("rank 1 was ended by SIGKILL")
        return super().apply()


class Dying(ReferenceFramework):
    """One of four ranks dies."""

    rank_group_class = DyingRankGroup


class Still(ReferenceFramework):
    """Ranks that train nothing."""

    def rank_group(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
    ) -> ReferenceRankGroup:
        return super().rank_group(model, recipe.replace(optimizer=SGD(0.0)), weights)


def test_what_a_framework_declines_or_fails_in_costs_that_side_alone() -> None:
    result = outcomes(refusing(Capability.RANKS_FULL), SHARDED)
    assert result["one place"] == (Outcome.PASS, "")
    assert {result["2 ranks"], result["4 ranks"]} == {(Outcome.NOT_OFFERED, "ranks.full")}
    result = outcomes(Dying("cpu"), SHARDED)
    assert result["4 ranks"] == (Outcome.ERROR, "raises-RankFailed")
    assert {result["one place"], result["2 ranks"]} == {(Outcome.PASS, "")}
    result = outcomes(Still("cpu"), SHARDED)
    assert result["one place"] == (Outcome.PASS, "")
    assert {result["2 ranks"][0], result["4 ranks"][0]} == {Outcome.FAIL}


def test_a_control_that_fails_in_a_later_stretch_is_seen() -> None:
    result = trained(SecondFails("cpu"), SHARDED)
    assert [type(one.error) for one in result.values()] == [RuntimeError, type(None), type(None)]
    costs = measured(SHARDED, result)
    assert "seconds a round/2 ranks" in costs
    assert "seconds a round/4 ranks" not in costs


@pytest.mark.parametrize(
    "name", ["shard-grad-op", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "fsdp"))]
)
def test_the_command_writes_a_record_and_shows_it(name: str, tmp_path: Path) -> None:
    ended = conformance("--folder", tmp_path, "--scenario", name, "--rounds", "3", "reference")
    assert ended.status == 0, ended.lines
    record = load(tmp_path / name / "reference-1-cpu-emulated.json.gz")
    assert [verdict.outcome for verdict in record.verdicts] == [Outcome.ABSTAIN] * 3
    assert {trace.case: len(trace.curves["loss"]) for trace in record.traces} == dict.fromkeys(
        ("one place", "2 ranks", "4 ranks"), 3
    )
    counted = by_name(record.measurements)
    by_row = {(row.side, row.quantity): row for row in rows(SCENARIOS[name], [record])}
    for kind in ("parameter", "gradient", "optimizer"):
        share, whole = (counted[f"{kind} bytes/{side}"].samples[0] for side in ("4 ranks", "one place"))
        row = by_row["4 ranks", f"{kind} bytes ÷ one place's"]
        assert row.cells == (f"{share / whole:.3g}",)
        sharded = kind in SCENARIOS[name].sides[-1].recipe.ranks.sharded  # type: ignore[union-attr]
        assert row.document == ("0.25" if sharded else "")
        assert share / whole == (pytest.approx(0.25, rel=0.05) if sharded else 1.0)
    assert by_row["2 ranks", "gradients reduced a window"].cells == ("37",)
