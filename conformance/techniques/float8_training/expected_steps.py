"""Expected results and amax history of float8 training, by the declared rule.

u is the unit roundoff of float32: quotients, scales and sums may be computed in that format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.techniques.formats.expected_products import U, as_codes_have_it, stored_scales
from fixtures.arrays import Array
from fixtures.narrow import NARROW, NarrowFormat
from frameworks.contract import AmaxHistory, DelayedRule, Float8Rule, Operand

QUOTIENT = 8 * U
"""Relative error of a value's quotient by its scale: four roundings of the scale and its own."""
SCALES = 12
"""Roundings of a product that its two scales stand for, beyond those of its sum."""


def format_of(rule: DelayedRule, operand: Operand) -> NarrowFormat:
    """The format that an operand is cast to."""
    return NARROW[rule.gradients if operand == "gradient" else rule.operands]


def used_scale(rule: DelayedRule, operand: Operand, history: AmaxHistory) -> float:
    """The scale of the next cast, from the amax history."""
    if rule.lag == 2:
        return history.scale
    most = float(np.max(history.amax))
    return most / format_of(rule, operand).largest if np.isfinite(most) and most > 0 else history.scale


@dataclass(frozen=True)
class Cast:
    """Dequantized values, float64, and their bound: one step near a midpoint."""

    values: Array
    doubt: Array


def cast(values: Array, scale: float, narrow: NarrowFormat) -> Cast:
    """A cast whose quotients may be rounded once more."""
    wide = values.astype(np.float64)
    exact = as_codes_have_it(wide, scale, narrow)
    others = [as_codes_have_it(wide * (1.0 + side * QUOTIENT), scale, narrow) for side in (-1, 1)]
    return Cast(exact, np.maximum(*(np.abs(other - exact) for other in others)))


@dataclass(frozen=True)
class BoundedResult:
    """The expected result and its bound."""

    values: Array
    bound: Array


def product(left: Cast, right: Cast) -> BoundedResult:
    """(n, k) times (k, m), with sums in float32: (k + 12)·u·Σ|a||b|, and the effect of uncertain codes."""
    sizes = np.abs(left.values) @ np.abs(right.values)
    loose = left.doubt @ (np.abs(right.values) + right.doubt) + np.abs(left.values) @ right.doubt
    return BoundedResult(left.values @ right.values, (left.values.shape[1] + SCALES) * U * sizes + loose)


@dataclass(frozen=True)
class Float8Layer:
    """Output and gradients of a dense layer."""

    outputs: BoundedResult
    weight_gradient: BoundedResult
    input_gradient: BoundedResult


def layer(
    inputs: Array, weight: Array, bias: Array, gradient: Array, rule: DelayedRule, memory: Mapping[Operand, AmaxHistory]
) -> Float8Layer:
    """A dense layer of float32 inputs (n, k), weight (k, m) and bias (m,) by the amax history before its pass.

    `gradient` is that of what the layer gives, (n, m), as it is cast: times the loss scale.
    """
    given: dict[Operand, Array] = {"input": inputs, "kernel": weight, "gradient": gradient}
    x, w, g = (
        cast(values, used_scale(rule, operand, memory[operand]), format_of(rule, operand))
        for operand, values in given.items()
    )
    result = product(x, w)
    rounding = 2 * U * (np.abs(result.values) + np.abs(bias))
    return Float8Layer(
        BoundedResult(result.values + bias, result.bound + rounding), product(_turned(x), g), product(g, _turned(w))
    )


def _turned(given: Cast) -> Cast:
    return Cast(given.values.T, given.doubt.T)


@dataclass(frozen=True)
class PassMagnitudes:
    """Results of one micro-batch of an exact run: outputs of its head, and the amax of each operand."""

    outputs: Array
    amax: dict[tuple[str, Operand], float]


class ExactRun:
    """A sequence of dense layers without biases and with constant kernels, whose values are all exact.

    Kernels, inputs and gradients are made so that every scale but that of the first layer's gradient is a power of two
    and every value has a code or is clipped; then float32 rounds nothing, in whatever order it adds.
    """

    def __init__(self, rule: Float8Rule, history: int, kernels: Mapping[str, Array]) -> None:
        self.rule, self.history = rule, history
        self.kernels = {name: kernel.astype(np.float64) for name, kernel in kernels.items()}
        operands: tuple[Operand, ...] = ("input", "kernel", "gradient")
        self.magnitudes: dict[tuple[str, Operand], list[float]] = {(n, o): [] for n in kernels for o in operands}

    def outputs(self, inputs: Array) -> Array:
        """The last layer's output, (n, m), float64."""
        x = inputs.astype(np.float64)
        for name in self.kernels:
            x = self._cast(name, "input", x) @ self._cast(name, "kernel", self.kernels[name])
        return x

    def passed(self, inputs: Array, gradient: Array) -> PassMagnitudes:
        """One micro-batch: inputs (n, k), and the gradient of the last layer's output (n, m) as it is cast."""
        x, maxima = inputs.astype(np.float64), dict[tuple[str, Operand], float]()
        for name, kernel in self.kernels.items():
            maxima[name, "input"], maxima[name, "kernel"] = _most(x), _most(kernel)
            x = self._cast(name, "input", x) @ self._cast(name, "kernel", kernel)
        back = gradient.astype(np.float64)
        for name, kernel in reversed(self.kernels.items()):
            maxima[name, "gradient"] = _most(back)
            with np.errstate(invalid="ignore"):
                back = self._cast(name, "gradient", back) @ self._cast(name, "kernel", kernel).T
        return PassMagnitudes(x, maxima)

    def take(self, *window: PassMagnitudes) -> None:
        """A window, which is one step of the amax history."""
        for key, maxima in self.magnitudes.items():
            maxima.append(float(np.max([each.amax[key] for each in window])))

    def amax(self, name: str, operand: Operand) -> Array:
        """The history, sorted."""
        history = np.zeros(self.history, np.float32)
        last = self.magnitudes[name, operand][-self.history :]
        history[: len(last)] = last
        return np.sort(history)

    def stored(self, name: str, operand: Operand) -> float:
        """The stored scale."""
        return [1.0, *self._stored(name, operand, self.magnitudes[name, operand])][-1]

    def used(self, name: str, operand: Operand) -> float:
        """The scale that the next pass casts with."""
        if self.rule.product.lag == 2:
            return self.stored(name, operand)
        return self._stored(name, operand, [*self.magnitudes[name, operand], 0.0])[-1]

    def _stored(self, name: str, operand: Operand, maxima: Sequence[float]) -> list[float]:
        return stored_scales(maxima, format_of(self.rule.product, operand), self.history)

    def _cast(self, name: str, operand: Operand, values: Array) -> Array:
        return as_codes_have_it(values, self.used(name, operand), format_of(self.rule.product, operand))


def _most(values: Array) -> float:
    return float(np.max(np.abs(values)))
