"""Faults of quantizers and of fake quantization."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import FakeRule, Quantized, QuantRule
from frameworks.reference.quantization.quantizers import ReferenceQuantizers
from tools.faults import fault


@fault("https://github.com/microsoft/onnxruntime/issues/19694", "quantization.range-follows-data", "laws.codes")
class RangesAlongTheOtherAxis(ReferenceQuantizers):
    """A range of each row is taken over columns, and the other way round."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        if rule.axis is None or rule.group:
            return super().range_of(values, rule)
        if values.shape[0] != values.shape[1]:
            return super().range_of(values, rule)
        return super().range_of(values.T, rule)


@fault("https://github.com/ml-explore/mlx-lm/pull/1880", "quantization.range-follows-data")
class FirstGroupForAll(ReferenceQuantizers):
    """Every group of a row takes the range of the first."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        lowest, highest = super().range_of(values, rule)
        if rule.group:
            return np.broadcast_to(lowest[:, :1], values.shape), np.broadcast_to(highest[:, :1], values.shape)
        return lowest, highest


@fault("https://github.com/pytorch/pytorch/issues/23838", "quantization.range-follows-data")
class ZeroIsLeftOut(ReferenceQuantizers):
    """A range of one sign does not take zero in."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        if rule.symmetric:
            return super().scale_of(lowest, highest, rule)
        return np.maximum((highest - lowest) / rule.divisor, rule.smallest_scale)

    def zero_point_of(self, lowest: Array, scale: Array, rule: QuantRule) -> Array:
        if rule.symmetric:
            return super().zero_point_of(lowest, scale, rule)
        return np.clip(np.rint(rule.low - lowest / scale), -(2**31), 2**31 - 1)


@fault("https://github.com/pytorch/ao/pull/1964", "quantization.ties")
class ZeroPointBeforeRounding(ReferenceQuantizers):
    """The zero point is added before the quotient is rounded."""

    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        odd = np.where(zero_point % 2 == 0, 0.0, zero_point)
        moved = self.rounded(values / scale + odd) + (zero_point - odd)
        return np.nan_to_num(np.clip(moved, rule.low, rule.high))


@fault(
    "https://github.com/scott-griffiths/bitstring/issues/342",
    "quantization.codes-as-declared",
    "quantization.round-trip",
)
class FractionsAreCutOff(ReferenceQuantizers):
    """Quotients are cut off to integers."""

    def rounded(self, quotient: Array) -> Array:
        return np.trunc(quotient)


@fault("https://github.com/pytorch/executorch/pull/20655", "quantization.round-trip")
class DifferenceInEightBits(ReferenceQuantizers):
    """The zero point is subtracted in eight bits, which wrap."""

    def restored(self, codes: Array, scale: Array, zero_point: Array) -> Array:
        difference = (codes - zero_point + 128) % 256 - 128
        return np.where(np.broadcast_to(zero_point, codes.shape) == 0, codes, difference) * scale


@fault("https://github.com/keras-team/keras/pull/19263", "quantization.degenerate")
class NoSmallestScale(ReferenceQuantizers):
    """A range of zeros has the scale zero, by which its values are divided."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        return super().scale_of(lowest, highest, replace(rule, smallest_scale=0.0))

    def restored(self, codes: Array, scale: Array, zero_point: Array) -> Array:
        return np.divide(super().restored(codes, scale, zero_point), scale) * scale


@fault("https://github.com/pytorch/pytorch/issues/100051", "quantization.degenerate")
class WidthInSingle(ReferenceQuantizers):
    """The width of a range is computed in float32, where it overflows."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        if rule.symmetric:
            return super().scale_of(lowest, highest, rule)
        width = np.maximum(highest, 0.0).astype(np.float32) - np.minimum(lowest, 0.0).astype(np.float32)
        return np.maximum(width.astype(np.float64) / rule.divisor, rule.smallest_scale)


@fault("https://github.com/microsoft/onnxruntime/issues/8625", "quantization.non-finite")
class OneRowSpoilsAll(ReferenceQuantizers):
    """Where one range is not finite, none is."""

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        scale = super().scale_of(lowest, highest, rule)
        return scale if np.isfinite(scale).all() else np.full_like(scale, np.nan)


@fault("https://github.com/tensorflow/tensorflow/issues/120295", "quantization.non-finite")
class NanIsOverlooked(ReferenceQuantizers):
    """A range leaves NaN out, whose code is then 0."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        return super().range_of(np.where(np.isnan(values), 0.0, values), rule)


@fault("https://github.com/pytorch/pytorch/pull/155109", "quantization.non-finite")
class InfinityTakesTheLowestCode(ReferenceQuantizers):
    """Fake quantization makes the lowest code of an infinity, whatever its sign."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        return super().fake_quantize(name, np.where(np.isinf(values), np.float32(-np.inf), values), scale, zero_point)


@fault("https://github.com/pytorch/pytorch/pull/37188", "quantization.fake-values")
class FakeTiesGoAway(ReferenceQuantizers):
    """Fake quantization rounds half-way values away from zero, the quantizer to even ones."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        quotient = values.astype(np.float64) / scale
        half = np.abs(quotient - np.trunc(quotient)) == 0.5
        moved = np.where(half, np.trunc(quotient) + np.sign(quotient), quotient) * scale
        return super().fake_quantize(name, moved.astype(np.float32), scale, zero_point)


@fault("https://github.com/pytorch/executorch/pull/13284", "quantization.fake-values")
class FakeRangeIsReduced(ReferenceQuantizers):
    """Fake quantization clips at half of the highest code."""

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = self.fake_rules()[name]
        restored, passed = super().fake_quantize(name, values, scale, zero_point)
        return np.minimum(restored, (rule.high // 2 - zero_point) * scale).astype(np.float32), passed


@fault("https://github.com/microsoft/nni/pull/3160", "quantization.straight-through")
class GradientEverywhere(ReferenceQuantizers):
    """The gradient is passed on where values are clipped, too."""

    def passes_on(self, values: Array, unclipped: Array, scale: Array, zero_point: Array, rule: FakeRule) -> Array:
        return np.ones(values.shape, bool)


@fault("https://github.com/pytorch/ao/pull/4806", "quantization.straight-through")
class GradientOfTheOpenRange(ReferenceQuantizers):
    """The gradient stops at the first and the last code."""

    def passes_on(self, values: Array, unclipped: Array, scale: Array, zero_point: Array, rule: FakeRule) -> Array:
        return (unclipped > rule.low) & (unclipped < rule.high)


@fault("https://github.com/pytorch/ao/issues/1662", "quantization.codes-as-declared")
class RestoredInHalf(ReferenceQuantizers):
    """What codes stand for is computed in float16."""

    def quantize(self, name: str, values: Array) -> Quantized:
        quantized = super().quantize(name, values)
        with np.errstate(over="ignore"):
            return replace(quantized, values=quantized.values.astype(np.float16).astype(np.float32))
