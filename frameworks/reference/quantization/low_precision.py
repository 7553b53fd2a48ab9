"""Casts in blocks, dynamic scales, stochastic rounding. Each decision is a method, which faults override."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import BlockScaleRule, DynamicScaleRule, PassResult

_LAYOUTS = {"float8_e4m3fn": (4, -6, 448.0), "float8_e5m2": (3, -14, 57344.0), "float4_e2m1fn": (2, 0, 6.0)}
"""By format: the significand's bits, the exponent of the smallest normal number, and the largest number."""
_POWERS: tuple[Literal["floor", "ceil", "even", "rceil"], ...] = ("floor", "ceil", "even", "rceil")


def round_to(values: Array, format_name: str) -> Array:
    """The nearest numbers of a format, half-way the even one, and the largest beyond it; NaN stays."""
    bits, smallest, largest = _LAYOUTS[format_name]
    _, exponent = np.frexp(values)
    step = np.exp2(np.maximum(exponent - 1, smallest) - bits + 1.0)
    return np.clip(np.rint(values / step) * step, -largest, largest)


class ReferenceBlockScales:
    """Casts of blocks that compute in float64; a block or tensor with a value that is not finite becomes NaN."""

    def rules(self) -> Mapping[str, BlockScaleRule]:
        return _BLOCK_RULES

    def cast(self, name: str, values: Array) -> tuple[Array, Array]:
        rule = self.rules()[name]
        blocks = values.astype(np.float64).reshape(len(values), -1, rule.block)
        with np.errstate(all="ignore"):
            amax = np.max(np.abs(blocks), axis=-1)
            tensor = self.tensor_scale(amax, rule)
            scales = self.find_scales(amax / tensor, rule)
            steps = (scales * tensor).astype(np.float32)[..., None]
            codes = round_to(blocks / steps.astype(np.float64), rule.element)
            return scales, (codes * steps).astype(np.float32).reshape(values.shape)

    def tensor_scale(self, amax: Array, rule: BlockScaleRule) -> float:
        """The scale of the tensor, 1 for a rule of one level and for a tensor of zeros."""
        return 1.0 if rule.levels == 1 or not amax.any() else self.divide_amax(amax, rule)

    def divide_amax(self, amax: Array, rule: BlockScaleRule) -> float:
        """The scale of a tensor with this largest value."""
        _, _, largest = _LAYOUTS[rule.element]
        return float(np.float32(np.max(amax) / (largest * _LAYOUTS[rule.scale_format][2])))

    def find_scales(self, amax: Array, rule: BlockScaleRule) -> Array:
        """The stored scale of each block."""
        bits, _, largest = _LAYOUTS[rule.element]
        if rule.scale_rule == "exact":
            smallest = 2.0 ** _LAYOUTS[rule.scale_format][1]
            scales = round_to(np.maximum(amax / largest, smallest), rule.scale_format)
        else:
            power = self.find_power(amax, rule.scale_rule, bits, largest)
            scales = np.exp2(np.clip(np.where(amax == 0.0, -127.0, power), -127.0, 127.0))
        return np.where(np.isfinite(amax), scales, np.nan)

    def find_power(
        self, amax: Array, scale_rule: Literal["floor", "ceil", "even", "rceil"], bits: int, largest: float
    ) -> Array:
        """The exponent of the scale of each block, before it is limited to those that the format has."""
        if scale_rule == "rceil":
            share, exponent = np.frexp(amax / largest)
            return np.asarray(exponent - (share == 0.5))
        share, exponent = np.frexp(amax)
        full = {"floor": 1.0, "ceil": np.nextafter(0.5, 1), "even": 1.0 - 2.0 ** -(bits + 1)}[scale_rule]
        return np.asarray(exponent - np.frexp(largest)[1] + (share >= full))


_BLOCK_RULES: Mapping[str, BlockScaleRule] = MappingProxyType(
    {
        **{f"mxfp8-{name}": BlockScaleRule("float8_e4m3fn", 32, "float8_e8m0fnu", name, "nan") for name in _POWERS},
        "nvfp4": BlockScaleRule("float4_e2m1fn", 16, "float8_e4m3fn", "exact", "nan"),
        "nvfp4-tensor": BlockScaleRule("float4_e2m1fn", 16, "float8_e4m3fn", "exact", "nan", levels=2),
    }
)


class ReferenceDynamicProducts:
    """Products of operands that are cast with the scales of the present call; sums are float64."""

    def rules(self) -> Mapping[str, DynamicScaleRule]:
        return _DYNAMIC_RULES

    def multiply(self, name: str, inputs: Array, kernel: Array, gradient: Array) -> PassResult:
        rule = self.rules()[name]
        with np.errstate(all="ignore"):
            output = self.cast(inputs, 1, rule) @ self.cast(kernel, 0, rule)
            back = self.cast(gradient, 1, rule, rule.gradients)
            input_gradient = back @ self.cast(kernel, 1, rule, extent=rule.kernel_extent).T
            if rule.kernel_gradient == "cast":
                inputs, gradient = self.cast(inputs, 0, rule), self.cast(gradient, 0, rule, rule.gradients)
            kernel_gradient = inputs.astype(np.float64).T @ gradient.astype(np.float64)
            return PassResult(*(array.astype(np.float32) for array in (output, input_gradient, kernel_gradient)))

    def cast(self, values: Array, axis: int, rule: DynamicScaleRule, format_name: str = "", extent: str = "") -> Array:
        """The dequantized values, float64, of an operand that is summed over along the axis."""
        name = format_name or rule.operands
        amax = self.find_amax(values, axis, extent or rule.scale_extent)
        scale = self.find_scale(amax.astype(np.float64), _LAYOUTS[name][2], rule)
        return (round_to(values * scale, name).astype(np.float32) / scale).astype(np.float64)

    def find_amax(self, values: Array, axis: int, extent: str) -> Array:
        """The largest magnitude of the values that share a scale."""
        return np.asarray(np.max(np.abs(values), axis=None if extent == "tensor" else axis, keepdims=True))

    def find_scale(self, amax: Array, largest: float, rule: DynamicScaleRule) -> Array:
        """The factor of the values, float32."""
        scale = (largest / np.maximum(amax, rule.smallest)).astype(np.float32)
        return np.asarray(scale / (2 * np.frexp(scale)[0]) if rule.scale_rule == "power-of-two-down" else scale)


_E4M3: Final = "float8_e4m3fn"
_DOWN: Final = "power-of-two-down"
_DYNAMIC_RULES: Mapping[str, DynamicScaleRule] = MappingProxyType(
    {
        "tensorwise": DynamicScaleRule(_E4M3, "float8_e5m2", "tensor", "tensor", "exact", smallest=1e-30),
        "rowwise": DynamicScaleRule(_E4M3, _E4M3, "row", "row", _DOWN, smallest=1e-30),
        "rowwise_with_gw_hp": DynamicScaleRule(_E4M3, _E4M3, "row", "tensor", _DOWN, "float32", 1e-30),
    }
)


class ReferenceStochasticRounding:
    """Rounds to bfloat16 by draws from a stream of its own."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __call__(self, values: Array) -> Array:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        up = self.draw(bits.shape) < (bits & np.uint32(0xFFFF))
        rounded = ((bits & np.uint32(0xFFFF0000)) + (up.astype(np.uint32) << np.uint32(16))).view(np.float32)
        return self.keep_nan(values, rounded)

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Integers from 0 to 65,535, each equally likely."""
        return self._rng.integers(0, 1 << 16, shape, np.uint32)

    def keep_nan(self, values: Array, rounded: Array) -> Array:
        """The rounded values; NaN, whose bits may have overflowed, as before."""
        return np.where(np.isnan(values), values, rounded)
