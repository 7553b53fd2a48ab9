"""Expected results of a quantizer, by its declared rule and its reported scale and zero point.

u is the unit roundoff of float32: everything here may be computed in that format.
"""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import FakeRule, QuantRule
from frameworks.contract.quantization import Ties

U = 2.0**-24
NEAR_A_TIE = 2.0**-20
"""Relative distance of a quotient from a half within which float32 may round to either neighbour."""


def rounded(quotient: Array, ties: Ties) -> Array:
    """To the nearest integer, float64; half-way by the rule."""
    match ties:
        case "even":
            return np.rint(quotient)
        case "up":
            return np.floor(quotient + 0.5)
        case "away":
            return np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)


def ranges(values: Array, rule: QuantRule) -> tuple[Array, Array]:
    """The lowest and the highest value of each value's range, float64, of the values' shape."""
    lowest, highest = (np.empty(values.shape) for _ in range(2))
    for part in _parts(values.shape, rule):
        lowest[part], highest[part] = values[part].min(), values[part].max()
    return lowest, highest


def _parts(shape: tuple[int, ...], rule: QuantRule) -> list[tuple[slice, slice]]:
    """Where each range of a matrix lies."""
    whole = slice(None)
    if rule.axis is None:
        return [(whole, whole)]
    length = shape[rule.axis]
    size = rule.group or length
    along = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    across = [slice(place, place + 1) for place in range(shape[1 - rule.axis])]
    return [(a, b) if rule.axis == 0 else (b, a) for a in along for b in across]


def scale_of(values: Array, rule: QuantRule) -> Array:
    """The scale that the rule gives each value's range, float64."""
    lowest, highest = ranges(values.astype(np.float64), rule)
    if rule.symmetric:
        width = np.maximum(np.abs(lowest), np.abs(highest))
    else:
        width = np.maximum(highest, 0.0) - np.minimum(lowest, 0.0)
    scale = np.maximum((width + rule.epsilon) / rule.divisor, rule.smallest_scale)
    return np.where(scale < rule.unit_below, 1.0, scale)


def zero_point_gap(values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> float:
    """Largest distance of a zero point from low − min / scale, clipped to the range of codes."""
    lowest, _ = ranges(values.astype(np.float64), rule)
    exact = np.clip(rule.low - np.minimum(lowest, 0.0) / scale, rule.low, rule.high)
    return float(np.abs(zero_point - (np.zeros_like(exact) if rule.symmetric else exact)).max())


def codes(quotient: Array, zero_point: Array, rule: QuantRule) -> Array:
    """The codes of values, given as their quotients by the scale, float64."""
    if rule.rounds == "sum":
        unclipped = rounded(quotient + zero_point, rule.ties)
    else:
        unclipped = rounded(quotient, rule.ties) + zero_point
    return np.asarray(np.clip(unclipped, rule.low, rule.high))


def wrong_codes(values: Array, measured: Array, scale: Array, zero_point: Array, rule: QuantRule) -> int:
    """Number of codes that are not the rule's, nor, where the quotient is very near to a half, an adjacent one.

    Where the rule rounds the sum with the zero point, that sum is rounded to float32 before. A scale of 0, as some
    report it for a range of zeros, has the code of zero alone.
    """
    wide = values.astype(np.float64)
    quotient = np.divide(wide, scale, out=np.where(wide == 0.0, 0.0, np.inf), where=scale != 0.0)
    expected = codes(quotient, zero_point, rule)
    to_a_half = np.abs(quotient - np.floor(quotient) - 0.5)
    summed = U * np.abs(quotient + zero_point) if rule.rounds == "sum" else 0.0
    allowed = np.where(to_a_half <= NEAR_A_TIE * np.abs(quotient) + summed, 1, 0)
    return int(np.sum(np.abs(measured - expected) > allowed))


def round_trip_excess(values: Array, restored: Array, scale: Array) -> float:
    """The largest error in units of s/2·(1 + 4u·(|x|/s + 1)), at most 1 if all is well: a range holds its values.

    A scale of 0, as some report it for a range of zeros, allows no error.
    """
    wide = values.astype(np.float64)
    error = np.abs(wide - restored.astype(np.float64))
    allowed = scale / 2 * (1 + 4 * U) + 2 * U * np.abs(wide)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0.0, 0.0, error / allowed).max())


def fake(values: Array, scale: Array, zero_point: Array, rule: FakeRule) -> tuple[Array, Array]:
    """The fake-quantized values and their gradient, float64; scale and zero point broadcast."""
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        code = rounded(wide / scale, rule.ties) + zero_point
        restored = (np.clip(code, rule.low, rule.high) - zero_point) * scale
        match rule.gradient:
            case "codes":
                inside = (code >= rule.low) & (code <= rule.high)
            case "range":
                inside = (wide >= (rule.low - zero_point) * scale) & (wide <= (rule.high - zero_point) * scale)
            case "everywhere":
                inside = np.ones(wide.shape, bool)
    return restored, inside.astype(np.float64)
