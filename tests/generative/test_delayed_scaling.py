"""The law of delayed scales: each check fails where what it is about is broken."""

from __future__ import annotations

import numpy as np

from conformance.techniques.delayed_scaling.cases import DelayedCase, DelayedStep
from fixtures.arrays import Array
from frameworks.contract import Operand
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct
from tests.generative.test_codes import failure


class _ForgetsAfterSixteen(ReferenceDelayedProduct):
    """No history is longer than sixteen steps."""

    def most(self, maxima: Array) -> float:
        return float(np.max(maxima[:16]))


def test_a_long_history_is_remembered_whole() -> None:
    powers = [6] + [-3] * 18
    steps = tuple(DelayedStep(((power, power),)) for power in powers)
    drawn = DelayedCase((3, 7, 2), 18, 1, 0, steps, 1)
    assert failure(drawn) is None
    assert failure(drawn, delayed_class=_ForgetsAfterSixteen) is not None


class _OverlooksNan(ReferenceDelayedProduct):
    """What is not a number is no largest value."""

    def largest(self, values: Array) -> float:
        return float(np.nanmax(np.abs(values)))


def test_what_is_not_a_number_is_remembered() -> None:
    steps = (DelayedStep(((0, 0), (1, 0)), special=np.nan), DelayedStep(((0, 0), (1, 0)), special=np.nan))
    drawn = DelayedCase((3, 7, 2), 3, 2, 0, steps, 1)
    assert failure(drawn) is None
    assert failure(drawn, delayed_class=_OverlooksNan) is not None


class _PredictionsCount(ReferenceDelayedProduct):
    """A prediction's inputs are remembered."""

    def predict(self, inputs: Array) -> Array:
        result = super().predict(inputs)
        before = self._memory["input"]
        self._memory["input"] = type(before)(before.scale, self.shifted(before.amax, self.largest(inputs)))
        return result


def test_a_prediction_moves_nothing() -> None:
    drawn = DelayedCase((3, 7, 2), 3, 1, 0, (DelayedStep(((0, 0),)), DelayedStep(((2, 2),), predicts=True)), 1)
    assert failure(drawn) is None
    assert failure(drawn, delayed_class=_PredictionsCount) is not None


class _ClipsMost(ReferenceDelayedProduct):
    """Values are cast by a small share of the scale that is remembered, so that they are clipped."""

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        return super().cast(values, operand, 2.0**-8 * scale)


def test_what_comes_out_follows_from_the_scales() -> None:
    drawn = DelayedCase((3, 7, 2), 3, 1, 0, (DelayedStep(((2, 2),)), DelayedStep(((0, 0),))), 1)
    assert failure(drawn) is None
    result = failure(drawn, delayed_class=_ClipsMost)
    assert result is not None
    assert result.text.startswith("output")
