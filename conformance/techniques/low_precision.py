"""Casts in blocks, dynamic scales, stochastic rounding: expected values from bits and tables, and the technique."""

from bisect import bisect_left
from collections.abc import Callable, Collection

import numpy as np

from conformance.checks.subject import Subject, need_rule
from conformance.techniques import Technique
from conformance.techniques.formats import values_up_to
from fixtures.arrays import NARROW, Array
from frameworks.contract import (
    BlockScaleRule,
    BlockScales,
    Capability,
    DynamicProducts,
    DynamicScaleRule,
    PassResult,
    Unsupported,
)
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.low_precision import (
    ReferenceBlockScales,
    ReferenceDynamicProducts,
    ReferenceStochasticRounding,
)

BLOCK_CASTS = ("mxfp8-floor", "mxfp8-ceil", "mxfp8-even", "mxfp8-rceil", "nvfp4", "nvfp4-tensor")
DYNAMIC_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
STEPS: dict[str, Array] = {name: NARROW[name].positive for name in ("float8_e4m3fn", "float8_e5m2")} | {
    "float4_e2m1fn": np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
}
"""The finite numbers of each format that are not negative, ascending."""
_FRACTION = 0x7FFFFF
"""The fraction's bits of float32."""


def need_cast(subject: Subject, name: str) -> tuple[BlockScales, BlockScaleRule]:
    """Return the framework's casts in blocks and the rule of one; end the test if it is not offered."""
    casts = need_rule(subject, Capability.BLOCK_SCALES, BlockScales)
    _need_name(Capability.BLOCK_SCALES, name, casts.rules())
    return casts, casts.rules()[name]


def need_recipe(subject: Subject, name: str) -> tuple[DynamicProducts, DynamicScaleRule]:
    """Return the framework's products with dynamic scales and the rule of one; end the test if it is not offered."""
    products = need_rule(subject, Capability.DYNAMIC_SCALES, DynamicProducts)
    _need_name(Capability.DYNAMIC_SCALES, name, products.rules())
    return products, products.rules()[name]


def _need_name(capability: Capability, name: str, rules: Collection[str]) -> None:
    if name not in rules:
        raise Unsupported(capability, f"got {', '.join(rules)}, want {name}")


def nearest_saturated(values: Array, format_name: str) -> Array:
    """Return the nearest number of the format, float64, half-way the even one; the largest beyond it; NaN stays."""
    steps, wide = STEPS[format_name], np.asarray(values, np.float64)
    middles = (steps[1:] + steps[:-1]) / 2
    low, high = (np.searchsorted(middles, np.abs(wide), side) for side in ("left", "right"))
    return np.asarray(np.where(np.isnan(wide), np.nan, np.copysign(steps[np.where(low % 2 == 0, low, high)], wide)))


def find_exponents(amax: Array, rule: BlockScaleRule) -> Array:
    """Return the exponent of each block's scale from the bits of its largest magnitude, finite float32."""
    bits = np.asarray(amax, np.float32).view(np.uint32).astype(np.int64)
    exponent, fraction = (bits >> 23) - 127, bits & _FRACTION
    steps = STEPS[rule.element]
    largest = int(np.float32(steps[-1]).view(np.uint32))
    half_step = int(np.float32(steps[-1] - steps[-2]).view(np.uint32) >> 23) - (largest >> 23) + 22
    carry = {
        "floor": fraction < 0,
        "ceil": fraction > 0,
        "even": fraction + (1 << half_step) > _FRACTION,
        "rceil": fraction > (largest & _FRACTION),
    }[rule.scale_rule]
    return np.asarray(np.clip(exponent + carry - ((largest >> 23) - 127), -127, 127))


def cast_blocks(values: Array, rule: BlockScaleRule) -> tuple[Array, Array]:
    """Return the stored scales and the values, as in `BlockScales.cast`, of a finite float32 matrix."""
    blocks = values.reshape(len(values), -1, rule.block)
    amax, tensor = np.abs(blocks).max(-1), np.float32(1.0)
    if rule.scale_rule == "exact":
        largest, narrow = np.float32(STEPS[rule.element][-1]), STEPS[rule.scale_format]
        if rule.levels == 2 and amax.any():
            tensor = np.float32(amax.max() / (largest * np.float32(narrow[-1])))
        smallest = narrow[narrow > 0][0] * 2 ** NARROW[rule.scale_format].fraction_bits
        scales = nearest_saturated(np.maximum(amax / largest / tensor, smallest), rule.scale_format)
    else:
        scales = np.ldexp(1.0, find_exponents(amax, rule))
    steps = (scales.astype(np.float32) * tensor)[..., None]
    codes = nearest_saturated(blocks.astype(np.float64) / steps, rule.element)
    with np.errstate(over="ignore"):
        return scales, (codes * steps).astype(np.float32).reshape(values.shape)


def cast_dynamic(values: Array, axis: int | None, format_name: str, rule: DynamicScaleRule) -> Array:
    """Return the dequantized values, float64, of a float32 operand whose scales are those along the axis, or of all."""
    largest = STEPS[format_name][-1]
    amax = np.abs(values).max(axis, keepdims=True).astype(np.float64)
    scale = (largest / np.maximum(amax, rule.smallest)).astype(np.float32)
    if rule.scale_rule == "power-of-two-down":
        scale = (scale.view(np.uint32) & ~np.uint32(_FRACTION)).view(np.float32)
    codes = nearest_saturated(values * scale, format_name)
    return np.asarray(codes.astype(np.float32) / scale, np.float64)


def multiply_dynamic(inputs: Array, kernel: Array, gradient: Array, rule: DynamicScaleRule) -> PassResult:
    """Return the rule's results of a layer, float32, from exact sums of dequantized operands."""

    def along(axis: int, extent: str) -> int | None:
        return axis if extent == "row" else None

    def cast(values: Array, axis: int, name: str = rule.operands, extent: str = rule.scale_extent) -> Array:
        return cast_dynamic(values, along(axis, extent), name, rule)

    output = cast(inputs, 1) @ cast(kernel, 0)
    input_gradient = cast(gradient, 1, rule.gradients) @ cast(kernel, 1, extent=rule.kernel_extent).T
    if rule.kernel_gradient == "cast":
        kernel_gradient = cast(inputs, 0).T @ cast(gradient, 0, rule.gradients)
    else:
        kernel_gradient = inputs.astype(np.float64).T @ gradient.astype(np.float64)
    return PassResult(*(array.astype(np.float32) for array in (output, input_gradient, kernel_gradient)))


def list_amaxes(largest: float) -> Array:
    """Return largest magnitudes of blocks, float32: around largest · 2^k, by single bits, and of all sizes."""
    near = np.asarray(largest * np.exp2(np.arange(-100, 117)), np.float32)
    bits = near.view(np.uint32)[:, None] + np.arange(-3, 4, dtype=np.int64)
    table = np.array([448, 449, 480, 600, 1.9375, 2.0**-120, 2.0**-126, 3.0e38], np.float32)
    drawn = np.exp2(np.random.default_rng(3).uniform(-12, 12, 500)).astype(np.float32)
    return np.concatenate([bits.astype(np.uint32).view(np.float32).ravel(), table, drawn])


def make_operands(kind: str, seed: int) -> tuple[Array, Array, Array]:
    """Return inputs (n, k), kernel (k, m) and gradient (n, m), float32, whose products need no rounded sum.

    Args:
        kind: "one-term": values of all bits in rows and columns of other magnitudes; inputs and gradient have one entry
            in each row and column. "exact-sums": dense integers times 2^-5 with the largest value 1.75, so that a scale
            of all values is a power of two, and sums of dequantized values are exact in float32.
    """
    rng, size = np.random.default_rng([seed, 41]), 33
    if kind == "exact-sums":
        arrays = [rng.integers(-55, 56, (size, size)) * np.float32(2.0**-5) for _ in range(3)]
        for array in arrays:
            array[tuple(rng.integers(1, size, 2))] = 1.75
        inputs, kernel, gradient = (array.astype(np.float32) for array in arrays)
        return inputs, kernel, gradient
    wide = [values_up_to((size, size), largest, [seed, i]) for i, largest in enumerate((3.3, 0.37, 0.9))]
    inputs, kernel, gradient = (np.ldexp(array, -rng.integers(0, 20, (size, 1))) for array in wide)
    places = (np.eye(size, dtype=np.float32)[rng.permutation(size)] for _ in range(2))
    return inputs * next(places), np.ldexp(kernel, -rng.integers(0, 20, size)), gradient * next(places)


def find_smallest(cast: Callable[[np.float32], Array]) -> int:
    """Return the least exponent at which the largest value of a cast of that power of two is within an eighth of it."""

    def is_lost(power: int) -> bool:
        scale = np.float32(2.0**-power)
        return not abs(float(np.max(cast(scale))) - float(scale)) <= float(scale) / 8

    return 1 - bisect_left(range(150), True, key=is_lost)


LOW_PRECISION = Technique(
    rows={
        "dynamic-scales": "float8 layers with dynamic scales",
        "block-scales": "casts in blocks, MXFP8 and NVFP4",
        "stochastic-rounding": "stochastic rounding to bfloat16",
    },
    clauses={
        "formats.dynamic-*": "dynamic-scales",
        "formats.declared-extent": "dynamic-scales",
        "formats.block-*": "block-scales",
        "formats.stochastic-*": "stochastic-rounding",
    },
    places={
        ReferenceBlockScales: ("block_scales_class", ReferenceFramework),
        ReferenceDynamicProducts: ("dynamic_products_class", ReferenceFramework),
        ReferenceStochasticRounding: ("stochastic_rounding_class", ReferenceFramework),
    },
)
