"""Quantizers: one small method for each decision, which faults override."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import FakeRule, Quantized, QuantRule

_SMALLEST = 2.0**-126
RULES: Mapping[str, QuantRule] = MappingProxyType(
    {
        "int8-tensor": QuantRule(-127, 127, 127.0, smallest_scale=_SMALLEST),
        "int8-row": QuantRule(-127, 127, 127.0, axis=1, smallest_scale=_SMALLEST),
        "int8-column": QuantRule(-127, 127, 127.0, axis=0, smallest_scale=_SMALLEST),
        "uint8-tensor": QuantRule(0, 255, 255.0, symmetric=False, smallest_scale=_SMALLEST),
        "int4-group": QuantRule(-7, 7, 7.0, axis=1, group=32, smallest_scale=_SMALLEST),
    }
)
FAKE_RULES: Mapping[str, FakeRule] = MappingProxyType(
    {
        "fake-int8-tensor": FakeRule(-127, 127),
        "fake-int8-column": FakeRule(-127, 127, axis=0),
        "fake-uint8-tensor": FakeRule(0, 255),
        "fake-int4-tensor": FakeRule(-7, 7),
    }
)


class ReferenceQuantizers:
    """Everything in float64, by one rule a quantizer."""

    def rules(self) -> Mapping[str, QuantRule]:
        return RULES

    def fake_rules(self) -> Mapping[str, FakeRule]:
        return FAKE_RULES

    def quantize(self, name: str, values: Array) -> Quantized:
        return self.quantized(self.rules()[name], values)

    def quantized(self, rule: QuantRule, values: Array) -> Quantized:
        """The values, a matrix, quantized by the rule."""
        wide = values.astype(np.float64)
        with np.errstate(all="ignore"):
            lowest, highest = self.range_of(wide, rule)
            scale = self.scale_of(lowest, highest, rule)
            zero_point = self.zero_point_of(lowest, scale, rule)
            codes = self.codes(wide, scale, zero_point, rule)
            restored = self.restored(codes, scale, zero_point)
        return Quantized(codes.astype(np.int32), scale, zero_point.astype(np.int32), restored.astype(np.float32))

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = self.fake_rules()[name]
        step, zero = scale.astype(np.float64), zero_point.astype(np.int32)
        with np.errstate(all="ignore"):
            unclipped = self.rounded(values.astype(np.float64) / step) + zero
            inside = self.passes_on(values.astype(np.float64), unclipped, step, zero, rule)
            restored = (np.clip(unclipped, rule.low, rule.high) - zero) * step
        return restored.astype(np.float32), inside.astype(np.float32)

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        """The lowest and highest value of the range that each value belongs to, broadcastable to the values."""
        if rule.group and rule.axis is not None:
            along, length = rule.axis, values.shape[rule.axis]
            starts = np.arange(0, length, rule.group)
            sizes = np.diff(np.append(starts, length))
            pairs = (np.minimum.reduceat(values, starts, axis=along), np.maximum.reduceat(values, starts, axis=along))
            lowest, highest = (np.repeat(each, sizes, axis=along) for each in pairs)
            return lowest, highest
        return values.min(rule.axis, keepdims=True), values.max(rule.axis, keepdims=True)

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        """The width of a code; an affine range includes zero."""
        low, high = np.minimum(lowest, 0.0), np.maximum(highest, 0.0)
        width = np.maximum(-lowest, highest) if rule.symmetric else high - low
        return np.maximum((width + rule.epsilon) / rule.divisor, rule.smallest_scale)

    def zero_point_of(self, lowest: Array, scale: Array, rule: QuantRule) -> Array:
        """The code of zero."""
        if rule.symmetric:
            return np.zeros_like(scale)
        return np.nan_to_num(np.clip(rule.low - self.rounded(np.minimum(lowest, 0.0) / scale), rule.low, rule.high))

    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        """The code of each value."""
        return np.nan_to_num(np.clip(self.rounded(values / scale) + zero_point, rule.low, rule.high))

    def rounded(self, quotient: Array) -> Array:
        """To the nearest integer, half-way to the even one."""
        return np.rint(quotient)

    def restored(self, codes: Array, scale: Array, zero_point: Array) -> Array:
        """The dequantized values."""
        return (codes - zero_point) * scale

    def passes_on(self, values: Array, unclipped: Array, scale: Array, zero_point: Array, rule: FakeRule) -> Array:
        """Where fake quantization lets a gradient through: where the rounded code needs no clipping."""
        return (unclipped >= rule.low) & (unclipped <= rule.high)
