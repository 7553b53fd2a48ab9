"""Scenarios whose sides are the first side's model in integer codes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.scenarios.judgement import measurements, verdicts
from conformance.scenarios.scenario import MODEL, QuantizedSide
from conformance.scenarios.training import SideResult
from frameworks.contract import Capability, Unsupported
from frameworks.reference import ReferenceFramework
from results.record.outcomes import Outcome
from tests.scenarios.test_scenarios import PLAIN, SMALL, refusing, trained

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
def results() -> dict[str, SideResult]:
    return trained(ReferenceFramework("cpu"), QUANTIZED)


def test_a_quantized_side_is_the_first_one_after_its_training(results: dict[str, SideResult]) -> None:
    plain, eight, four = results.values()
    assert not eight.losses
    assert eight.apart is not None
    assert four.apart is not None
    assert 0 < eight.apart < four.apart
    assert four.counts[MODEL] < eight.counts[MODEL] < plain.counts[MODEL]


def test_a_quantized_side_is_judged_by_what_it_is_worth(results: dict[str, SideResult]) -> None:
    plain, eight, four = results.values()
    judged = verdicts(ReferenceFramework("cpu"), QUANTIZED, QUANTIZED.setting(), [plain, eight, four], 30, "again")
    assert {verdict.outcome for verdict in judged} == {Outcome.PASS}
    assert [check.what for check in judged[1].checks] == ["accuracy", "distance from plain's outputs"]
    worthless = [plain, replace(eight, quality=0.1), four]
    judged = verdicts(ReferenceFramework("cpu"), QUANTIZED, QUANTIZED.setting(), worthless, 30, "again")
    assert judged[1].signature == "learned-nothing"
    bytes_of = [one.case for one in measurements(QUANTIZED, [plain, eight, four]) if one.key == MODEL]
    assert bytes_of == ["plain", "eight bits", "four bits"]


def test_a_technique_that_is_not_there_is_unsupported() -> None:
    _, eight, four = trained(refusing(Capability.WEIGHT_INT4), QUANTIZED, 6).values()
    assert eight.error is None
    assert isinstance(four.error, Unsupported)


def test_what_failed_is_not_quantized() -> None:
    class Failing(ReferenceFramework):
        def trainer(self, *given):  # type: ignore[no-untyped-def]
            raise RuntimeError("no training today")

    plain, eight, _ = trained(Failing("cpu"), QUANTIZED, 6).values()
    assert "no training today" in str(plain.error)
    assert "no training today" in str(eight.error)
