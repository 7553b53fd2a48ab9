"""Float8 training: dense layers with delayed scaling; one small method for each decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import Model, dense_weights
from frameworks.contract import AmaxHistory, Float8Rule, Operand
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor, plain
from frameworks.reference.quantization.delayed_scaling import OPERANDS, DelayedScaling, untouched

RULE = Float8Rule(DelayedScaling.rule, skipped="stays")

Memory = MutableMapping[str, Array]
"""Scale and amax history of each operand, "PATH.OPERAND.scale" and "PATH.OPERAND.amax"."""

Magnitudes = MutableMapping[str, float]
"""The amax of each operand, "PATH.OPERAND"."""


class Float8Layers:
    """Dense layers whose operands are quantized and dequantized with delayed scales."""

    rule = RULE
    scaling_class: type[DelayedScaling] = DelayedScaling

    def __init__(self, ops: Operations, history: int) -> None:
        self.ops = ops
        self.history = history

    def initial_statistics(self, model: Model) -> dict[str, Array]:
        """The initial amax histories and scales."""
        return {
            f"{path}.{operand}.{part}": np.asarray(value, np.float64)
            for path in self.paths(model)
            for operand, history in untouched(self.history).items()
            for part, value in vars(history).items()
        }

    def paths(self, model: Model) -> list[str]:
        """The layers that multiply in 8 bits."""
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
        """The output of the layer at `path` for x; records the amax if there is a place for it."""
        if f"{path}.input.scale" not in memory:
            return self.ops.linear(x, weight, bias)
        scaling = self.scaling(path, memory)
        given = self.cast(path, "input", x, scaling, magnitudes)
        result = self.ops.linear(given, self.cast(path, "kernel", weight, scaling, magnitudes), None)
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
        """What is done to the gradient of the product."""
        scale = scaling.next_scale("gradient")

        def back(gradient: Array) -> Array:
            self.note(path, "gradient", gradient, scaling, magnitudes)
            return scaling.cast(gradient, "gradient", scale)

        return back

    def note(
        self, path: str, operand: Operand, values: Array, scaling: DelayedScaling, magnitudes: Magnitudes | None
    ) -> None:
        """Records the amax; a recomputed segment gives the same one."""
        if magnitudes is not None and values.size:
            name = f"{path}.{operand}"
            magnitudes[name] = self.larger(magnitudes.get(name, 0.0), scaling.largest(values))

    def larger(self, known: float, newest: float) -> float:
        """The magnitude of a window so far."""
        return float(np.maximum(known, newest))

    def scaling(self, path: str, memory: Mapping[str, Array]) -> DelayedScaling:
        """The scales of the layer at `path`."""
        return self.scaling_class({operand: _amax_history(f"{path}.{operand}", memory) for operand in OPERANDS})

    def move(self, memory: Memory, magnitudes: Mapping[str, float]) -> None:
        """Records the amax of a window; operands that were not used keep their state."""
        paths = dict.fromkeys(name.rpartition(".")[0] for name in magnitudes)
        for path in paths:
            scaling = self.scaling(path, memory)
            scales = {operand: scaling.next_scale(operand) for operand in OPERANDS}
            scaling.move(scales, {o: [magnitudes[f"{path}.{o}"]] for o in OPERANDS if f"{path}.{o}" in magnitudes})
            for operand, history in scaling.amax_histories().items():
                memory[f"{path}.{operand}.scale"] = np.asarray(np.float32(history.scale), np.float64)
                memory[f"{path}.{operand}.amax"] = history.amax.astype(np.float64)

    def amax_histories(self, memory: Mapping[str, Array]) -> dict[str, dict[Operand, AmaxHistory]]:
        """The delayed-scaling state, by the names of weights."""
        paths = [name.removesuffix(".input.scale") for name in memory if name.endswith(".input.scale")]
        return {f"{path}.weight": self.scaling(path, memory).amax_histories() for path in paths}


def _amax_history(name: str, memory: Mapping[str, Array]) -> AmaxHistory:
    return AmaxHistory(float(memory[f"{name}.scale"]), memory[f"{name}.amax"].astype(np.float32))


@primitive
def _cast(x: Array, casting: Callable[[Array], Array]) -> Array:
    return casting(plain(x))


@primitive
def with_gradient(x: Array, casting: Callable[[Array], Array]) -> Array:
    """x, whose gradient is cast."""
    del casting
    return x


def _as_it_is(_ans: Any, _x: Any, _casting: Any) -> Callable[[Array], Array]:
    return lambda gradient: gradient


def _as_cast(_ans: Any, _x: Any, casting: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return casting


defvjp(_cast, _as_it_is, None)
defvjp(with_gradient, _as_cast, None)
