"""Faults of products with delayed scales, of products in eight bits, and of integers stored two to a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import ml_dtypes
import numpy as np

from fixtures.arrays import Array
from frameworks.contract import DelayedRule
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceFormats
from tools.faults import fault


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.delayed-scaling")
class EvaluationIsRemembered(ReferenceDelayedProduct):
    """What a prediction is made of moves the history on."""

    def predict(self, inputs: Array) -> Array:
        output = super().predict(inputs)
        given = self._memory["input"]
        self._memory["input"] = type(given)(given.scale, self.shifted(given.amax, self.largest(inputs)))
        return output


@fault("https://github.com/meta-pytorch/float8_experimental/pull/31", "formats.delayed-scaling", "laws.delayed-scales")
class OnlyTheNewestCounts(ReferenceDelayedProduct):
    """A scale follows the last step alone, whatever the history holds."""

    def most(self, maxima: Array) -> float:
        return float(maxima[0])


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.delayed-scaling")
class LastMicroBatchCounts(ReferenceDelayedProduct):
    """Of a window the last micro-batch alone is remembered."""

    def largest_of(self, maxima: Sequence[float]) -> float:
        return maxima[-1]


@fault("https://github.com/NVIDIA/TransformerEngine/pull/786", "formats.delayed-scaling")
class InfinityIsAScale(ReferenceDelayedProduct):
    """An infinite value gives an infinite scale."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return np.inf if np.isinf(most) else super().scale_of(most, before, format_name)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/1723", "formats.delayed-scaling")
class DeclaresALongerLag(ReferenceDelayedProduct):
    """Scales are said to follow the step before the last one."""

    rule = DelayedRule("float8_e4m3fn", "float8_e5m2", lag=2)


@fault("https://github.com/deepseek-ai/DeepGEMM/issues/37", "formats.products")
class ProductsSumInLow(ReferenceFormats):
    """Products of eight bits are added up in bfloat16."""

    def multiplied(self, left: Array, right: Array) -> Array:
        total = np.zeros((len(left), right.shape[1]), ml_dtypes.bfloat16)
        for place in range(left.shape[1]):
            total = (total.astype(np.float64) + np.outer(left[:, place], right[place])).astype(ml_dtypes.bfloat16)
        return total.astype(np.float64)


@fault("https://github.com/vllm-project/compressed-tensors/pull/518", "formats.packing")
class NibblesHaveNoSign(ReferenceFormats):
    """Negative integers come back as 8 to 15."""

    def with_sign(self, nibbles: Array) -> Array:
        return nibbles


@fault("https://github.com/tile-ai/tilelang/pull/2073", "formats.packing")
class StoredUnpacked(ReferenceFormats):
    """Each integer takes a byte of its own."""

    def packed(self, codes: Array, axis: Literal[0, 1]) -> Array:
        return codes.view(np.uint8)

    def unpacked(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        return stored.view(np.int8)
