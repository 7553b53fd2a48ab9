"""The law of delayed scales: each check fails where what it is about is broken."""

from typing import Any

import numpy as np
import pytest

from conformance.techniques.delayed_scaling.cases import DelayedCase, DelayedStep
from fixtures.arrays import Array
from frameworks.contract import Operand
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct
from tests.generative.test_codes import failure, with_parts
from tools.faults.reference import formats


class _OverlooksNan(ReferenceDelayedProduct):
    """What is not a number is no largest value."""

    def largest(self, values: Array) -> float:
        return float(np.nanmax(np.abs(values)))


class _ClipsMost(ReferenceDelayedProduct):
    """Values are cast by a small share of the scale that is remembered, so that they are clipped."""

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        return super().cast(values, operand, 2.0**-8 * scale)


SPOILT = DelayedStep(((0, 0), (1, 0)), special=np.nan)
LONG = tuple(DelayedStep(((power, power),)) for power in [6] + [-3] * 18)
ZERO, TWO = DelayedStep(((0, 0),)), DelayedStep(((2, 2),))


@pytest.mark.parametrize(
    ("history", "micro_batches", "steps", "broken", "text"),
    [
        (18, 1, LONG, formats.HistoryOfSixteen, ""),
        (3, 2, (SPOILT, SPOILT), with_parts(delayed_class=_OverlooksNan), ""),
        (3, 1, (ZERO, DelayedStep(((2, 2),), predicts=True)), formats.EvaluationIsRemembered, ""),
        (3, 1, (TWO, ZERO), with_parts(delayed_class=_ClipsMost), "output"),
    ],
    ids=["long-history", "not-a-number", "prediction", "output"],
)
def test_delayed_case_with_a_broken_scale_fails(
    history: int, micro_batches: int, steps: tuple[DelayedStep, ...], broken: Any, text: str
) -> None:
    drawn = DelayedCase((3, 7, 2), history, micro_batches, 0, steps, 1)
    assert failure(drawn) is None
    assert failure(drawn, broken).text.startswith(text)
