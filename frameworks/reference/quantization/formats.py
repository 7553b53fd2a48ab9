"""8-bit formats, integer products and quantizers. Each decision is a method, which faults override."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from fixtures.arrays import NARROW, Array, NarrowFormat
from frameworks.contract import CastRule, FakeRule, Quantized, QuantRule

_CASTS = {
    name: CastRule("inf", "inf") if narrow.specials == "ieee" else CastRule("nan", "nan")
    for name, narrow in NARROW.items()
}
_SMALLEST = 2.0**-126  # the smallest normal float32
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


class ReferenceFormats:
    """Casts to 8-bit formats by search in a table of the format's values, and 8-bit matrix products."""

    def casts(self) -> Mapping[str, CastRule]:
        return _CASTS

    def encode(self, values: Array, format_name: str) -> Array:
        if format_name == "int8":
            return self.integers(np.asarray(values, np.float64)).astype(np.int8).view(np.uint8)
        narrow = NARROW[format_name]
        wide = self.widen(values)
        magnitude = np.abs(wide)
        codes = self.codes(magnitude, narrow)
        codes = np.where(np.isinf(magnitude), self.special(narrow, self.casts()[format_name].infinity), codes)
        codes = np.where(np.isnan(wide), self.special(narrow, "nan"), codes)
        return self.add_signs(codes, wide, narrow).astype(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        if format_name == "int8":
            return codes.view(np.int8).astype(np.float32)
        return self.table(NARROW[format_name])[codes].astype(np.float32)

    def integer_product(self, a: Array, b: Array) -> Array:
        return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        left, right = (self.table(NARROW[name])[codes] for codes, name in zip((a, b), formats, strict=True))
        return self.multiply(left, right).astype(np.float32)

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        rows = np.moveaxis(codes, axis, 0)
        if len(rows) % 2:
            rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        return np.moveaxis(self.join_nibbles(rows[::2], rows[1::2]).astype(np.uint8), 0, axis)

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        rows = np.moveaxis(stored, axis, 0)
        pairs = np.stack([rows & 15, rows >> 4], axis=1).reshape(2 * len(rows), *rows.shape[1:])
        return np.moveaxis(self.with_sign(pairs.astype(np.int8))[:length], 0, axis)

    def multiply(self, left: Array, right: Array) -> Array:
        """The product of two matrices of decoded values."""
        return left @ right

    def join_nibbles(self, low: Array, high: Array) -> Array:
        """Bytes that each hold two 4-bit integers."""
        return (low & 15) | ((high & 15) << 4)

    def with_sign(self, nibbles: Array) -> Array:
        """Integers from -8 to 7, from unsigned 4-bit values."""
        return np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)

    def table(self, narrow: NarrowFormat) -> Array:
        """The value of each code."""
        return narrow.values()

    def widen(self, values: Array) -> Array:
        """The values as float64, before rounding."""
        return np.asarray(values, np.float64)

    def integers(self, values: Array) -> Array:
        """Float64 values cast to int8: truncated toward zero and saturated; NaN becomes 0."""
        return np.nan_to_num(np.clip(np.trunc(values), -128, 127), nan=0.0)

    def codes(self, magnitude: Array, narrow: NarrowFormat) -> Array:
        """The nearest code of each magnitude; beyond the largest finite code, the format's overflow rule applies."""
        positive = narrow.positive
        following = 2 * positive[-1] - positive[-2]
        steps = np.append(positive, following)
        lower = np.clip(np.searchsorted(steps, magnitude, "right") - 1, 0, len(steps) - 2)
        low, high = steps[lower], steps[lower + 1]
        with np.errstate(invalid="ignore"):
            up = self.goes_up(magnitude - low, high - magnitude, lower)
        nearest = np.where(magnitude >= following, len(positive), lower + up)
        return np.where(nearest == len(positive), self.special(narrow, self.casts()[narrow.name].overflow), nearest)

    def goes_up(self, above: Array, below: Array, lower: Array) -> Array:
        """Returns whether a value rounds to the code after `lower`: that code is nearer, or equally near and even."""
        return (above > below) | ((above == below) & (lower % 2 == 1))

    def special(self, narrow: NarrowFormat, what: str) -> int:
        """The unsigned code of NaN, of infinity, or of the largest finite value."""
        values = narrow.values()
        if what == "saturate":
            return len(narrow.positive) - 1
        mask = np.isnan(values) if what == "nan" else np.isposinf(values)
        return int(np.flatnonzero(mask)[0])

    def add_signs(self, codes: Array, values: Array, narrow: NarrowFormat) -> Array:
        """The codes with the sign of the values; formats whose negative zero is NaN keep zero positive."""
        negative = np.signbit(values)
        if not narrow.signed:
            return np.where(negative | (values == 0.0), 255, codes)
        if narrow.specials == "fnuz":
            negative = negative & (codes % 128 != 0)
        return np.where(negative, codes | 128, codes)


class ReferenceQuantizers:
    """Quantizers that compute in float64, each by its rule."""

    def rules(self) -> Mapping[str, QuantRule]:
        return RULES

    def fake_rules(self) -> Mapping[str, FakeRule]:
        return FAKE_RULES

    def quantize(self, name: str, values: Array) -> Quantized:
        return self.quantize_by_rule(self.rules()[name], values)

    def quantize_by_rule(self, rule: QuantRule, values: Array) -> Quantized:
        """The matrix `values`, quantized by the rule."""
        wide = values.astype(np.float64)
        with np.errstate(all="ignore"):
            lowest, highest = self.range_of(wide, rule)
            scale = self.scale_of(lowest, highest, rule)
            zero_point = self.zero_point_of(lowest, scale, rule)
            codes = self.codes(wide, scale, zero_point, rule)
            restored = self.dequantize(codes, scale, zero_point)
        return Quantized(codes.astype(np.int32), scale, zero_point.astype(np.int32), restored.astype(np.float32))

    def fake_quantize(self, name: str, values: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
        rule = self.fake_rules()[name]
        step, zero = scale.astype(np.float64), zero_point.astype(np.int32)
        with np.errstate(all="ignore"):
            unclipped = self.round(values.astype(np.float64) / step) + zero
            inside = self.passes_on(values.astype(np.float64), unclipped, step, zero, rule)
            restored = (np.clip(unclipped, rule.low, rule.high) - zero) * step
        return restored.astype(np.float32), inside.astype(np.float32)

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        """The lowest and highest value of the range that each value belongs to, broadcastable to the values."""
        if rule.group and rule.axis is not None:
            length = values.shape[rule.axis]
            starts = np.arange(0, length, rule.group)
            sizes = np.diff(np.append(starts, length))
            lowest = np.minimum.reduceat(values, starts, axis=rule.axis)
            highest = np.maximum.reduceat(values, starts, axis=rule.axis)
            return np.repeat(lowest, sizes, axis=rule.axis), np.repeat(highest, sizes, axis=rule.axis)
        return values.min(rule.axis, keepdims=True), values.max(rule.axis, keepdims=True)

    def scale_of(self, lowest: Array, highest: Array, rule: QuantRule) -> Array:
        """The scale of each range; an affine range is extended to include zero."""
        low, high = np.minimum(lowest, 0.0), np.maximum(highest, 0.0)
        width = np.maximum(-lowest, highest) if rule.symmetric else high - low
        return np.maximum((width + rule.epsilon) / rule.divisor, rule.smallest_scale)

    def zero_point_of(self, lowest: Array, scale: Array, rule: QuantRule) -> Array:
        """The code of zero."""
        if rule.symmetric:
            return np.zeros_like(scale)
        return np.nan_to_num(np.clip(rule.low - self.round(np.minimum(lowest, 0.0) / scale), rule.low, rule.high))

    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        """The code of each value."""
        return np.nan_to_num(np.clip(self.round(values / scale) + zero_point, rule.low, rule.high))

    def round(self, quotient: Array) -> Array:
        """The nearest integer, ties to even."""
        return np.rint(quotient)

    def dequantize(self, codes: Array, scale: Array, zero_point: Array) -> Array:
        """The dequantized values."""
        return (codes - zero_point) * scale

    def passes_on(self, values: Array, unclipped: Array, scale: Array, zero_point: Array, rule: FakeRule) -> Array:
        """Mask of the entries that pass their gradient on: those whose rounded code needs no clipping."""
        return (unclipped >= rule.low) & (unclipped <= rule.high)
