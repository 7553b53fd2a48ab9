"""Faults of products with delayed scales, of products in eight bits, and of integers stored two to a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import ml_dtypes
import numpy as np

from fixtures.arrays import Array
from frameworks.contract import DelayedRule, Operand
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceFormats
from tools.faults import fault


@fault(
    "https://github.com/meta-pytorch/float8_experimental/pull/18",
    component="formats",
    clauses=("formats.delayed-scaling",),
)
class ScaledJustInTime(ReferenceDelayedProduct):
    """A step's own values decide about its scale, so that nothing is ever clipped."""

    def train(self, *window: tuple[Array, Array]):  # type: ignore[no-untyped-def]
        super().train(*window)
        return super().train(*window)


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/825", component="formats", clauses=("formats.delayed-scaling",)
)
class EvaluationIsRemembered(ReferenceDelayedProduct):
    """What a prediction is made of moves the history on."""

    def predict(self, inputs: Array) -> Array:
        output = super().predict(inputs)
        given = self._memory["input"]
        self._memory["input"] = type(given)(given.scale, self.shifted(given.amax, self.largest(inputs)))
        return output


@fault(
    "https://github.com/meta-pytorch/float8_experimental/pull/31",
    component="formats",
    clauses=("formats.delayed-scaling", "laws.delayed-scales"),
)
class OnlyTheNewestCounts(ReferenceDelayedProduct):
    """A scale follows the last step alone, whatever the history holds."""

    def most(self, maxima: Array) -> float:
        return float(maxima[0])


@fault("https://github.com/NVIDIA/TransformerEngine/pull/65", component="formats", clauses=("formats.delayed-scaling",))
class NewestReplacesNewest(ReferenceDelayedProduct):
    """The newest value takes the place of the one before it, so that older ones are never forgotten."""

    def shifted(self, maxima: Array, newest: float) -> Array:
        return np.concatenate([np.array([newest], np.float32), np.maximum(maxima[1:], maxima[:-1].max())])


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/825", component="formats", clauses=("formats.delayed-scaling",)
)
class LastMicroBatchCounts(ReferenceDelayedProduct):
    """Of a window the last micro-batch alone is remembered."""

    def largest_of(self, maxima: Sequence[float]) -> float:
        return maxima[-1]


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/786", component="formats", clauses=("formats.delayed-scaling",)
)
class ZerosHaveNoScale(ReferenceDelayedProduct):
    """A step of zeros gives a scale of zero."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return super().scale_of(most, before, format_name) if most else 0.0


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/786", component="formats", clauses=("formats.delayed-scaling",)
)
class InfinityIsAScale(ReferenceDelayedProduct):
    """An infinite value gives an infinite scale."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return np.inf if np.isinf(most) else super().scale_of(most, before, format_name)


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/567", component="formats", clauses=("formats.delayed-scaling",)
)
class GradientsHaveTheOperandsRange(ReferenceDelayedProduct):
    """The scale of gradients is that of the format of inputs, 448 for 57344."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return super().scale_of(most, before, self.rule.operands)


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/1723", component="formats", clauses=("formats.delayed-scaling",)
)
class GradientsAreOperands(ReferenceDelayedProduct):
    """Gradients are cast to the format of inputs."""

    def format_of(self, operand: Operand) -> str:
        return self.rule.operands


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", component="formats", clauses=("formats.delayed-scaling",))
class OverflowIsNotClipped(ReferenceDelayedProduct):
    """What has outgrown the scale is cast as it is, and becomes NaN."""

    def clipped(self, values: Array, largest: float) -> Array:
        return values


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/2044", component="formats", clauses=("formats.delayed-scaling",)
)
class LagsOneStepMore(ReferenceDelayedProduct):
    """Casts use the scale that is stored, which is a step older than what is declared."""

    def next_scale(self, operand: Operand) -> float:
        self._pending = getattr(self, "_pending", dict[Operand, float]())
        late = self._pending.get(operand, 1.0)
        self._pending[operand] = super().next_scale(operand)
        return late


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/825", component="formats", clauses=("formats.delayed-scaling",)
)
class SignsCount(ReferenceDelayedProduct):
    """The largest value is remembered, not the largest absolute one."""

    def largest(self, values: Array) -> float:
        return float(np.max(values))


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/1723", component="formats", clauses=("formats.delayed-scaling",)
)
class DeclaresALongerLag(ReferenceDelayedProduct):
    """Scales are said to follow the step before the last one."""

    rule = DelayedRule("float8_e4m3fn", "float8_e5m2", lag=2)


@fault("https://github.com/deepseek-ai/DeepGEMM/issues/37", component="formats", clauses=("formats.products",))
class ProductsSumInLow(ReferenceFormats):
    """Products of eight bits are added up in bfloat16."""

    def multiplied(self, left: Array, right: Array) -> Array:
        total = np.zeros((len(left), right.shape[1]), ml_dtypes.bfloat16)
        for place in range(left.shape[1]):
            total = (total.astype(np.float64) + np.outer(left[:, place], right[place])).astype(ml_dtypes.bfloat16)
        return total.astype(np.float64)


@fault("https://github.com/vllm-project/compressed-tensors/pull/518", component="formats", clauses=("formats.packing",))
class SignReachesIntoTheNeighbour(ReferenceFormats):
    """A negative integer in the lower half of a byte sets all bits of the upper one."""

    def joined(self, low: Array, high: Array) -> Array:
        return low | ((high & 15) << 4)


@fault("https://github.com/vllm-project/compressed-tensors/pull/518", component="formats", clauses=("formats.packing",))
class NibblesHaveNoSign(ReferenceFormats):
    """Negative integers come back as 8 to 15."""

    def with_sign(self, nibbles: Array) -> Array:
        return nibbles


@fault("https://github.com/tile-ai/tilelang/pull/2073", component="formats", clauses=("formats.packing",))
class OddEndIsLost(ReferenceFormats):
    """The last of an odd number of integers is not stored."""

    def packed(self, codes: Array, axis: Literal[0, 1]) -> Array:
        even = codes.shape[axis] // 2 * 2
        return super().packed(np.take(codes, np.arange(even), axis), axis)


@fault("https://github.com/tile-ai/tilelang/pull/2073", component="formats", clauses=("formats.packing",))
class StoredUnpacked(ReferenceFormats):
    """Each integer takes a byte of its own."""

    def packed(self, codes: Array, axis: Literal[0, 1]) -> Array:
        return codes.view(np.uint8)

    def unpacked(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        return stored.view(np.int8)
