"""Scenarios whose sides are the first side's model in integer codes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.scenarios.judgement import measurements, verdicts
from conformance.scenarios.scenario import MODEL, QuantizedSide
from conformance.scenarios.training import SideResult, train
from frameworks.contract import Capability, Framework, Unsupported
from frameworks.reference import ReferenceFramework
from results.record.outcomes import Outcome
from tests.scenarios.test_scenarios import PLAIN, SMALL

QUANTIZED = replace(
    SMALL,
    sides=(
        SMALL.sides[0],
        QuantizedSide("eight bits", PLAIN, technique="weight-int8"),
        QuantizedSide("four bits", PLAIN, technique="weight-int4"),
    ),
    published={},
)


@pytest.fixture(scope="module")
def results() -> tuple[SideResult, ...]:
    return train(ReferenceFramework("cpu"), QUANTIZED, QUANTIZED.setting(), 30, [].append)


def test_a_quantized_side_is_the_first_one_after_its_training(results: tuple[SideResult, ...]) -> None:
    plain, eight, four = results
    assert not eight.losses
    assert eight.apart is not None
    assert four.apart is not None
    assert 0 < eight.apart < four.apart
    assert plain.model_bytes is not None
    assert four.model_bytes is not None
    assert four.model_bytes < (eight.model_bytes or 0) < plain.model_bytes


def test_a_quantized_side_is_judged_by_what_it_is_worth(results: tuple[SideResult, ...]) -> None:
    judged = verdicts(ReferenceFramework("cpu"), QUANTIZED, QUANTIZED.setting(), results, 30, "again")
    assert {verdict.outcome for verdict in judged} == {Outcome.PASS}
    assert [check.what for check in judged[1].checks] == ["accuracy", "distance from plain's outputs"]
    worthless = [results[0], replace(results[1], quality=0.1), results[2]]
    judged = verdicts(ReferenceFramework("cpu"), QUANTIZED, QUANTIZED.setting(), worthless, 30, "again")
    assert judged[1].signature == "learned-nothing"
    bytes_of = {one.case: one.samples[0] for one in measurements(QUANTIZED, results) if one.key == MODEL}
    assert list(bytes_of) == ["plain", "eight bits", "four bits"]


def test_a_technique_that_is_not_there_is_unsupported() -> None:
    class Without(ReferenceFramework):
        def refusals(self):  # type: ignore[no-untyped-def]
            return {**super().refusals(), Capability.WEIGHT_INT4: "it has no integers of four bits"}

    framework: Framework = Without("cpu")
    _, eight, four = train(framework, QUANTIZED, QUANTIZED.setting(), 6, [].append)
    assert eight.error is None
    assert isinstance(four.error, Unsupported)


def test_what_failed_is_not_quantized() -> None:
    class Failing(ReferenceFramework):
        def trainer(self, *given):  # type: ignore[no-untyped-def]
            raise RuntimeError("no training today")

    plain, eight, _ = train(Failing("cpu"), QUANTIZED, QUANTIZED.setting(), 6, [].append)
    assert "no training today" in str(plain.error)
    assert "no training today" in str(eight.error)
