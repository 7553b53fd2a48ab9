"""Delayed scaling: one small method for each decision, which faults override."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fixtures.arrays import Array
from fixtures.narrow import NARROW
from frameworks.contract import AmaxHistory, DelayedRule, Operand, PassResult
from frameworks.reference.quantization.formats import ReferenceFormats

OPERANDS: tuple[Operand, ...] = ("input", "kernel", "gradient")


def untouched(history: int) -> dict[Operand, AmaxHistory]:
    """The state before any step."""
    return {operand: AmaxHistory(1.0, np.zeros(history, np.float32)) for operand in OPERANDS}


class DelayedScaling:
    """The scales of a product's operands, which follow the previous step."""

    rule = DelayedRule("float8_e4m3fn", "float8_e5m2", lag=1)

    def __init__(self, memory: Mapping[Operand, AmaxHistory]) -> None:
        self._formats = ReferenceFormats()
        self._memory = dict(memory)

    def move(self, scales: Mapping[Operand, float], maxima: Mapping[Operand, Sequence[float]]) -> None:
        """Records a step: its scales, and the amax of each of its micro-batches."""
        for operand, each in maxima.items():
            shifted = self.shifted(self._memory[operand].amax, self.largest_of(each))
            self._memory[operand] = AmaxHistory(scales[operand], shifted)

    def amax_histories(self) -> dict[Operand, AmaxHistory]:
        return dict(self._memory)

    def next_scale(self, operand: Operand) -> float:
        """The scale that the next step casts with."""
        history = self._memory[operand]
        return self.scale_of(float(self.most(history.amax)), history.scale, self.format_of(operand))

    def format_of(self, operand: Operand) -> str:
        """The format that an operand is cast to."""
        return self.rule.gradients if operand == "gradient" else self.rule.operands

    def largest(self, values: Array) -> float:
        """The amax of one micro-batch's values."""
        return float(np.max(np.abs(values)))

    def largest_of(self, maxima: Sequence[float]) -> float:
        """The amax of a step of several micro-batches."""
        return float(np.max(maxima))

    def shifted(self, maxima: Array, newest: float) -> Array:
        """The history with the newest value in place of the oldest, the newest first."""
        return np.concatenate([np.array([newest], np.float32), maxima[:-1]])

    def most(self, maxima: Array) -> float:
        """The value of the amax history that determines the scale."""
        return float(np.max(maxima))

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        """The scale for values up to `most`; the one before where that is 0 or not finite."""
        return most / NARROW[format_name].largest if np.isfinite(most) and most > 0 else before

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        """The dequantized values, float64."""
        name = self.format_of(operand)
        largest = NARROW[name].largest
        with np.errstate(all="ignore"):
            codes = self._formats.encode(self.clipped(values.astype(np.float64) / scale, largest), name)
            return NARROW[name].values()[codes] * scale

    def clipped(self, values: Array, largest: float) -> Array:
        """Values within the range of the format; NaN stays."""
        return np.clip(values, -largest, largest)


class ReferenceDelayedProduct(DelayedScaling):
    """Sums are float64, results float32."""

    def __init__(self, kernel: Array, history: int) -> None:
        super().__init__(untouched(history))
        self._kernel = kernel.astype(np.float64)

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        scales: dict[Operand, float] = {operand: self.next_scale(operand) for operand in self._memory}
        passed = tuple(self._passed(inputs, gradient, scales) for inputs, gradient in window)
        magnitudes: dict[Operand, list[Array]] = {
            "input": [inputs for inputs, _ in window],
            "kernel": [self._kernel] * len(window),
            "gradient": [gradient for _, gradient in window],
        }
        self.move(scales, {operand: [self.largest(each) for each in values] for operand, values in magnitudes.items()})
        return passed

    def predict(self, inputs: Array) -> Array:
        wide = self.cast(inputs, "input", self.next_scale("input"))
        return (wide @ self.cast(self._kernel, "kernel", self.next_scale("kernel"))).astype(np.float32)

    def _passed(self, inputs: Array, gradient: Array, scales: dict[Operand, float]) -> PassResult:
        given = self.cast(inputs, "input", scales["input"])
        kernel = self.cast(self._kernel, "kernel", scales["kernel"])
        passed_back = self.cast(gradient, "gradient", scales["gradient"])
        with np.errstate(all="ignore"):
            results = (given @ kernel, passed_back @ kernel.T, given.T @ passed_back)
            return PassResult(*(each.astype(np.float32) for each in results))
