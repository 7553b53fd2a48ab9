"""Scenarios with offload: the control's bits, and how much of what it holds is away."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from conformance.scenarios import SCENARIOS
from conformance.scenarios.scenario import OFFLOADED, Scenario, Side
from conformance.scenarios.table import rows
from fixtures.arrays import Array
from fixtures.recipe import Adam, Offload, OffloadedKind, Recipe
from frameworks.contract import Capability, Conventions, Framework
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.offload import ArrayStore, HostStore
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.outcomes import Outcome
from results.record.reading import load
from tests.scenarios.test_run import conformance
from tests.scenarios.test_scenarios import SMALL, measured, outcomes, refusing, trained

PLAIN = Recipe(Adam(2.0**-4))
PASS = (Outcome.PASS, "")


def small(to: Literal["host", "disk"] = "host") -> Scenario:
    """The small scenario with offload in the place of its sides."""
    offloaded = (Side(kind, PLAIN.replace(offload=Offload((kind,), to)), equal=True) for kind in OFFLOADED)
    return replace(SMALL, name="small-offload", sides=(Side("here", PLAIN), *offloaded), published={})


def counted(framework: Framework, to: Literal["host", "disk"] = "host") -> dict[str, Any]:
    """What is measured in two rounds, by quantity and side."""
    return measured(small(to), trained(framework, small(to), 2))


@pytest.mark.parametrize("to", ["host", "disk"])
def test_all_of_what_the_control_holds_is_away(to: Literal["host", "disk"]) -> None:
    costs = counted(ReferenceFramework("cpu"), to)
    whole = sum(4 * int(np.prod(shape)) for shape in small().setting().model.parameter_shapes().values())
    assert costs["parameter bytes/here"].samples == costs["parameter bytes away/parameters"].samples == (whole,)
    assert costs["optimizer bytes/here"].samples == costs["optimizer bytes away/optimizer"].samples == (2 * whole,)
    assert costs["activation bytes away/activations"].samples > costs["saved bytes/here"].samples
    assert sorted(name for name in costs if " away/" in name) == [
        "activation bytes away/activations",
        "optimizer bytes away/optimizer",
        "parameter bytes away/parameters",
    ]


def test_activations_are_those_of_one_update() -> None:
    once, thrice = (trained(ReferenceFramework("cpu"), small(), rounds)["activations"].counts for rounds in (1, 3))
    assert once == thrice != {}


def test_a_right_framework_keeps_the_bits_of_the_control() -> None:
    assert outcomes(ReferenceFramework("cpu"), small()) == dict.fromkeys(("here", *OFFLOADED), PASS)


class LossyStore(HostStore):
    """What comes back has lost its lowest bits."""

    def get(self, key: str) -> Array:
        return super().get(key).astype(np.float16).astype(np.float64)


class LossyTrainer(ReferenceTrainer):
    """It keeps what is offloaded in a lossy store."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return LossyStore()


class Lossy(ReferenceFramework):
    """It loses bits of what it offloads, and says that a compiler may round."""

    trainer_class = LossyTrainer

    def conventions(self) -> Conventions:
        return replace(super().conventions(), compiled=True)


def test_bits_that_offload_loses_are_seen_however_short_the_run_and_no_compiler_excuses_them() -> None:
    for rounds in (30, 2):
        result = outcomes(Lossy("cpu"), small(), rounds)
        assert {result[kind] for kind in OFFLOADED} == {(Outcome.FAIL, "parameters-differ")}
        assert result["here"][0] is (Outcome.PASS if rounds == 30 else Outcome.ABSTAIN)


class StayingTrainer(ReferenceTrainer):
    """It keeps everything, whatever is to leave."""

    def storage(self, kind: OffloadedKind, group: str, arrays: dict[str, Array]) -> MutableMapping[str, Array]:
        return dict(arrays)


class Staying(ReferenceFramework):
    """Nothing of its state leaves."""

    trainer_class = StayingTrainer


def test_a_framework_that_offloads_nothing_shows_in_the_bytes() -> None:
    costs = counted(Staying("cpu"))
    assert costs["parameter bytes away/parameters"].samples == costs["optimizer bytes away/optimizer"].samples == (0.0,)


def test_what_a_framework_declines_costs_that_side_alone() -> None:
    result = outcomes(refusing(Capability.OFFLOAD_ACTIVATIONS), small())
    assert result.pop("activations") == (Outcome.NOT_OFFERED, "offload.activations")
    assert set(result.values()) == {PASS}


@pytest.mark.parametrize("name", ["cpu-offload", pytest.param("disk-offload", marks=pytest.mark.slow)])
def test_the_command_writes_a_record_and_shows_it(name: str, tmp_path: Path) -> None:
    ended = conformance("--folder", tmp_path, "--scenario", name, "--rounds", "2", "reference")
    assert ended.status == 0, ended.lines
    record = load(tmp_path / name / "reference-1-cpu-emulated.json.gz")
    assert {verdict.case: verdict.outcome for verdict in record.verdicts} == {
        "here": Outcome.ABSTAIN,
        **dict.fromkeys(OFFLOADED, Outcome.PASS),
    }
    by_row = {(row.side, row.quantity): (row.document, *row.cells) for row in rows(SCENARIOS[name], [record])}
    assert by_row["parameters", "parameter bytes away ÷ here's"] == ("1", "1")
    assert by_row["optimizer", "optimizer bytes away ÷ here's"] == ("1", "1")
    document, share = by_row["activations", "activation bytes away ÷ here's"]
    assert document == "at least 1"
    assert float(share) >= 1.0
    assert {by_row[kind, "distance from here's parameters"] for kind in OFFLOADED} == {("0", "0")}
