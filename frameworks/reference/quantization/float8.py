"""Float8 training: products with delayed scaling, and dense layers that multiply by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import NARROW, Array
from fixtures.model import Model, dense_weights
from frameworks.contract import AmaxHistory, DelayedRule, Float8Rule, Operand, PassResult
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tape import Tensor, plain
from frameworks.reference.quantization.formats import ReferenceFormats

OPERANDS: tuple[Operand, ...] = ("input", "kernel", "gradient")

Memory = MutableMapping[str, Array]
"""Scale and amax history of each operand, "PATH.OPERAND.scale" and "PATH.OPERAND.amax"."""
Magnitudes = MutableMapping[str, float]
"""The amax of each operand, "PATH.OPERAND"."""


def make_initial_state(history: int) -> dict[Operand, AmaxHistory]:
    """The delayed-scaling state before the first step."""
    return {operand: AmaxHistory(1.0, np.zeros(history, np.float32)) for operand in OPERANDS}


class DelayedScaling:
    """The scales of a product's operands, computed from the amax history up to the previous step."""

    rule = DelayedRule("float8_e4m3fn", "float8_e5m2", lag=1)

    def __init__(self, memory: Mapping[Operand, AmaxHistory]) -> None:
        self._formats = ReferenceFormats()
        self._memory = dict(memory)

    def move(self, scales: Mapping[Operand, float], maxima: Mapping[Operand, Sequence[float]]) -> None:
        """Records a step: its scales, and the amax of each of its micro-batches."""
        for operand, values in maxima.items():
            shifted = self.shift_history(self._memory[operand].amax, self.largest_of(values))
            self._memory[operand] = AmaxHistory(scales[operand], shifted)

    def amax_histories(self) -> dict[Operand, AmaxHistory]:
        return dict(self._memory)

    def next_scale(self, operand: Operand) -> float:
        """The scale of the next step's cast."""
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

    def shift_history(self, maxima: Array, newest: float) -> Array:
        """The history, newest value first, after the newest value has replaced the oldest."""
        return np.concatenate([np.array([newest], np.float32), maxima[:-1]])

    def most(self, maxima: Array) -> float:
        """The value of the amax history that determines the scale."""
        return float(np.max(maxima))

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        """The scale for values up to `most`; the former scale `before` if `most` is 0 or not finite."""
        return most / NARROW[format_name].largest if np.isfinite(most) and most > 0 else before

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        """The dequantized values, float64."""
        name = self.format_of(operand)
        largest = NARROW[name].largest
        with np.errstate(all="ignore"):
            codes = self._formats.encode(self.clip(values.astype(np.float64) / scale, largest), name)
            return NARROW[name].values()[codes] * scale

    def clip(self, values: Array, largest: float) -> Array:
        """Values within the range of the format; NaN stays."""
        return np.clip(values, -largest, largest)


class ReferenceDelayedProduct(DelayedScaling):
    """A product with delayed scaling that accumulates in float64 and returns float32."""

    def __init__(self, kernel: Array, history: int) -> None:
        super().__init__(make_initial_state(history))
        self._kernel = kernel.astype(np.float64)

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        scales: dict[Operand, float] = {operand: self.next_scale(operand) for operand in self._memory}
        passed = tuple(self._run_pass(inputs, gradient, scales) for inputs, gradient in window)
        magnitudes: dict[Operand, list[Array]] = {
            "input": [inputs for inputs, _ in window],
            "kernel": [self._kernel] * len(window),
            "gradient": [gradient for _, gradient in window],
        }
        self.move(
            scales, {operand: [self.largest(array) for array in values] for operand, values in magnitudes.items()}
        )
        return passed

    def predict(self, inputs: Array) -> Array:
        wide = self.cast(inputs, "input", self.next_scale("input"))
        return (wide @ self.cast(self._kernel, "kernel", self.next_scale("kernel"))).astype(np.float32)

    def _run_pass(self, inputs: Array, gradient: Array, scales: dict[Operand, float]) -> PassResult:
        quantized = self.cast(inputs, "input", scales["input"])
        kernel = self.cast(self._kernel, "kernel", scales["kernel"])
        passed_back = self.cast(gradient, "gradient", scales["gradient"])
        with np.errstate(all="ignore"):
            results = (quantized @ kernel, passed_back @ kernel.T, quantized.T @ passed_back)
            return PassResult(*(array.astype(np.float32) for array in results))


class Float8Layers:
    """Dense layers whose operands are quantized and dequantized with delayed scales."""

    rule = Float8Rule(DelayedScaling.rule, skipped="stays")
    scaling_class: type[DelayedScaling] = DelayedScaling

    def __init__(self, ops: Operations, history: int) -> None:
        self.ops = ops
        self.history = history

    def initial_statistics(self, model: Model) -> dict[str, Array]:
        """The initial amax histories and scales."""
        return {
            f"{path}.{operand}.{part}": np.asarray(value, np.float64)
            for path in self.paths(model)
            for operand, history in make_initial_state(self.history).items()
            for part, value in vars(history).items()
        }

    def paths(self, model: Model) -> list[str]:
        """Paths of the layers that multiply in 8-bit formats."""
        weights = (n for n in dense_weights(model) if model.parameter_format(n) != "float64")
        return [name.removesuffix(".weight") for name in weights]

    def dense(
        self,
        path: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        memory: Mapping[str, Array],
        magnitudes: Magnitudes | None,
    ) -> Tensor:
        """The output of the layer at `path` for x; records the amax in `magnitudes` unless that is None."""
        if f"{path}.input.scale" not in memory:
            return self.ops.linear(x, weight, bias)
        scaling = self.scaling(path, memory)
        quantized = self.cast(path, "input", x, scaling, magnitudes)
        result = self.ops.linear(quantized, self.cast(path, "kernel", weight, scaling, magnitudes), None)
        back = self.gradient_cast(path, scaling, magnitudes)
        result = replace(result, value=with_gradient(result.value, back))
        return result if bias is None else self.ops.apply("linear", lambda y, b, _: y + b, result, bias)

    def cast(
        self, path: str, operand: Operand, x: Tensor, scaling: DelayedScaling, magnitudes: Magnitudes | None
    ) -> Tensor:
        """Dequantized inputs or kernel; the gradient passes straight through."""
        scale = scaling.next_scale(operand)
        self.note(path, operand, x.plain(), scaling, magnitudes)
        return replace(x, value=_cast(x.value, lambda values: scaling.cast(values, operand, scale)))

    def gradient_cast(
        self, path: str, scaling: DelayedScaling, magnitudes: Magnitudes | None
    ) -> Callable[[Array], Array]:
        """A function that casts the output gradient of the product and records its amax."""
        scale = scaling.next_scale("gradient")

        def back(gradient: Array) -> Array:
            self.note(path, "gradient", gradient, scaling, magnitudes)
            return scaling.cast(gradient, "gradient", scale)

        return back

    def note(
        self, path: str, operand: Operand, values: Array, scaling: DelayedScaling, magnitudes: Magnitudes | None
    ) -> None:
        """Records the amax; recomputation records the same value again."""
        if magnitudes is not None and values.size:
            name = f"{path}.{operand}"
            magnitudes[name] = self.larger(magnitudes.get(name, 0.0), scaling.largest(values))

    def larger(self, known: float, newest: float) -> float:
        """The amax of a window after a new micro-batch: the larger of both."""
        return float(np.maximum(known, newest))

    def scaling(self, path: str, memory: Mapping[str, Array]) -> DelayedScaling:
        """The scales of the layer at `path`."""
        return self.scaling_class({operand: _amax_history(f"{path}.{operand}", memory) for operand in OPERANDS})

    def move(self, memory: Memory, magnitudes: Mapping[str, float]) -> None:
        """Updates the histories with the amax of a window; operands that were not used keep their state."""
        paths = dict.fromkeys(name.rpartition(".")[0] for name in magnitudes)
        for path in paths:
            scaling = self.scaling(path, memory)
            scales = {operand: scaling.next_scale(operand) for operand in OPERANDS}
            scaling.move(scales, {o: [magnitudes[f"{path}.{o}"]] for o in OPERANDS if f"{path}.{o}" in magnitudes})
            for operand, history in scaling.amax_histories().items():
                memory[f"{path}.{operand}.scale"] = np.asarray(np.float32(history.scale), np.float64)
                memory[f"{path}.{operand}.amax"] = history.amax.astype(np.float64)

    def amax_histories(self, memory: Mapping[str, Array]) -> dict[str, dict[Operand, AmaxHistory]]:
        """The delayed-scaling state of each layer's operands, by the name of its weight."""
        paths = [name.removesuffix(".input.scale") for name in memory if name.endswith(".input.scale")]
        return {f"{path}.weight": self.scaling(path, memory).amax_histories() for path in paths}


def _amax_history(name: str, memory: Mapping[str, Array]) -> AmaxHistory:
    return AmaxHistory(float(memory[f"{name}.scale"]), memory[f"{name}.amax"].astype(np.float32))


@primitive
def _cast(x: Array, casting: Callable[[Array], Array]) -> Array:
    """x after `casting`; the gradient passes straight through."""
    return casting(plain(x))


defvjp(_cast, lambda _ans, _x, _casting: lambda gradient: gradient, None)


@primitive
def with_gradient(x: Array, casting: Callable[[Array], Array]) -> Array:
    """x unchanged; `casting` is applied to its gradient."""
    del casting
    return x


defvjp(with_gradient, lambda _ans, _x, casting: casting, None)
