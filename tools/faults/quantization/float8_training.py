"""Faults of what dense layers multiply in training by delayed scaling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Operand
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.quantization.delayed_scaling import DelayedScaling
from frameworks.reference.quantization.float8_training import Float8Layers, Magnitudes, with_gradient
from tools.faults import fault

Arrays = dict[str, Array]


@fault("https://github.com/keras-team/keras/pull/19488", "formats.float8-values")
class BiasesHaveEightBitsToo(Float8Layers):
    """The bias is cast as the kernel is."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, memory, magnitudes
    ) -> Tensor:
        shift = None if bias is None else self.cast(path, "kernel", bias, self.scaling(path, memory), None)
        return super().dense(path, x, weight, shift, memory, magnitudes)


@fault("https://github.com/microsoft/nni/pull/3160", "formats.float8-gradients")
class ClippedValuesPassNothingOn(Float8Layers):
    """Inputs that were clipped pass no gradient on."""

    def cast(
        self, path: str, operand: Operand, x: Tensor, scaling: DelayedScaling, magnitudes: Magnitudes | None
    ) -> Tensor:
        result = super().cast(path, operand, x, scaling, magnitudes)
        limit = scaling.next_scale(operand) * 448.0
        inside = np.abs(x.plain()) <= limit
        clipped = self.ops.apply("fake_quantize", lambda values, _: values * inside, result)
        return self.ops.apply("fake_quantize", lambda values, _: values + result.plain() * ~inside, clipped)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/1723", "formats.float8-gradients")
class GradientsOfBiasesAreCast(Float8Layers):
    """The bias is added before the place where the gradient is cast."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, memory, magnitudes
    ) -> Tensor:
        if bias is None or f"{path}.input.scale" not in memory:
            return super().dense(path, x, weight, bias, memory, magnitudes)
        scaling = self.scaling(path, memory)
        back = self.gradient_cast(path, scaling, None)
        ones = np.ones((*x.shape[:-1], 1))
        bent = super().dense(path, x, weight, None, memory, magnitudes)
        shift = self.ops.apply("fake_quantize", lambda b, _: ones * b, bias)
        return self.ops.apply("add", lambda y, b, _: y + b, bent, _cast_back(shift, back))


def _cast_back(x: Tensor, back: Callable[[Array], Array]) -> Tensor:
    return Tensor(with_gradient(x.value, back), x.format)


class _Reciprocal(DelayedScaling):
    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return 1.0 / super().scale_of(most, 1.0 / before, format_name)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/123", "formats.float8-values", "formats.float8-accuracy")
class ScaleIsTheReciprocal(Float8Layers):
    """The scale and its reciprocal take each other's place."""

    scaling_class = _Reciprocal
