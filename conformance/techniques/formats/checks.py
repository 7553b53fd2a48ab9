"""Expected casts, codes and quantized matmuls by the declared rules, and checks of them.

u is the unit roundoff of float32: scales, quotients and sums may be computed in that format.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from conformance.checks.evidence import Verdict
from conformance.oracle.bound import Bound
from fixtures.arrays import Array, NarrowFormat
from frameworks.contract import CastRule, FakeRule, Quantized, QuantRule
from frameworks.contract.quantization import Ties

SOURCES = {name: np.dtype(name) for name in ("float64", "float32", "float16")} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16)
}
"""Source formats of casts."""


def nearest(values: Array, narrow: NarrowFormat) -> Array:
    """The nearest value of the format, float64, half-way to the even code; infinite where that is beyond the largest.

    The sign of zero is kept but where the format has one zero only.
    """
    wide = np.asarray(values).astype(np.float64)
    steps = narrow.positive
    steps = np.append(steps, 2 * steps[-1] - steps[-2])
    index = np.searchsorted(steps, np.abs(wide))
    high = steps[np.minimum(index, len(steps) - 1)]
    low = steps[np.maximum(np.minimum(index, len(steps) - 1) - 1, 0)]
    middle = (low + high) / 2
    even = np.where(index % 2 == 1, low, high)
    magnitude = np.where(np.abs(wide) == middle, even, np.where(np.abs(wide) < middle, low, high))
    magnitude = np.where(magnitude > narrow.largest, np.inf, magnitude)
    magnitude = np.where(np.abs(wide) > steps[-1], np.inf, magnitude)
    signed = np.copysign(magnitude, wide)
    return np.where(magnitude == 0.0, 0.0, signed) if narrow.specials == "fnuz" else signed


def as_declared(values: Array, narrow: NarrowFormat, rule: CastRule) -> Array:
    """The result of a cast, float64: the nearest value, or the rule's result beyond the largest one."""
    wide = np.asarray(values).astype(np.float64)
    becomes = {"saturate": narrow.largest, "nan": np.nan, "inf": np.inf}
    beyond = np.where(np.isinf(wide), becomes[rule.infinity], becomes[rule.overflow])
    near = nearest(wide, narrow)
    return np.asarray(np.where(np.isnan(wide), np.nan, np.where(np.isfinite(near), near, np.copysign(beyond, wide))))


def unlike(measured: Array, expected: Array) -> Array:
    """Where two arrays differ; NaN is NaN, and zeros have signs."""
    same = (measured == expected) & (np.signbit(measured) == np.signbit(expected))
    return np.asarray(~(same | (np.isnan(measured) & np.isnan(expected))))


def hard_values(narrow: NarrowFormat, source: str) -> Array:
    """Hard-to-cast values within the format's range, in the source format, of both signs.

    Every value of the format, the middle between each and the next, both neighbours of that middle in the source
    format, and values of every magnitude in between, drawn from one seed.
    """
    dtype = SOURCES[source]
    steps = narrow.positive
    middles = (steps[:-1] + steps[1:]) / 2
    smallest = np.log2(steps[steps > 0][0]) - 2
    drawn = np.exp2(np.random.default_rng(0).uniform(smallest, np.log2(narrow.largest), 100_000))
    with np.errstate(under="ignore", over="ignore"):
        exact = middles[middles.astype(dtype).astype(np.float64) == middles].astype(dtype)
        beside = [np.nextafter(exact, np.array(towards, dtype)) for towards in (0.0, np.inf)]
        every = np.concatenate([steps.astype(dtype), exact, *beside, drawn.astype(dtype)])
    wide = every.astype(np.float64)
    every = every[np.isfinite(wide) & (wide <= narrow.largest)]
    return np.concatenate([every, -every])


def beyond_values(narrow: NarrowFormat) -> Array:
    """Finite float32 values, of both signs, that round beyond the largest one of the format, in rising magnitude."""
    steps = narrow.positive
    following = 2 * steps[-1] - steps[-2]
    middle = (narrow.largest + following) / 2
    near = np.concatenate(
        [[np.nextafter(np.float32(middle), np.float32(np.inf))], np.linspace(middle, following, 17)[1:]]
    )
    sweep = np.linspace(middle, 4 * narrow.largest, 65)[1:]
    every = np.concatenate([near, sweep, 2.0 ** np.arange(np.ceil(np.log2(narrow.largest)) + 2, 128)])
    every = np.unique(every).astype(np.float32)
    every = every[np.isfinite(every)]
    return np.concatenate([every, -every])


U = 2.0**-24
NEAR_A_TIE = 2.0**-20
"""Relative distance of a quotient from a half within which float32 may round to either neighbour."""


def round_quotient(quotient: Array, ties: Ties) -> Array:
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
    across = [slice(index, index + 1) for index in range(shape[1 - rule.axis])]
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
        unclipped = round_quotient(quotient + zero_point, rule.ties)
    else:
        unclipped = round_quotient(quotient, rule.ties) + zero_point
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
        code = round_quotient(wide / scale, rule.ties) + zero_point
        restored = (np.clip(code, rule.low, rule.high) - zero_point) * scale
        match rule.gradient:
            case "codes":
                inside = (code >= rule.low) & (code <= rule.high)
            case "range":
                inside = (wide >= (rule.low - zero_point) * scale) & (wide <= (rule.high - zero_point) * scale)
            case "everywhere":
                inside = np.ones(wide.shape, bool)
    return restored, inside.astype(np.float64)


def example(where: Array, values: Array, measured: Array, expected: Array) -> str:
    """The first element that differs, as `got X, want Y for VALUE (N of M elements differ)`; "all" if none differs."""
    if not where.any():
        return "all"
    position = tuple(int(index[0]) for index in np.nonzero(where))
    value, got, wanted = (float(array[position]) for array in (values, measured, expected))
    return f"got {got!r}, want {wanted!r} for {value!r} ({int(where.sum())} of {where.size} elements differ)"


def broadcast(quantized: Quantized) -> tuple[Array, Array]:
    """Scale and zero point of each value, float64."""
    scale, zero = (np.asarray(value, np.float64) for value in (quantized.scale, quantized.zero_point))
    return np.broadcast_to(scale, quantized.codes.shape), np.broadcast_to(zero, quantized.codes.shape)


def check_scale(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule, what: str) -> None:
    """Each scale is the rule's for the range."""
    scale, _ = broadcast(quantized)
    wanted = scale_of(values, rule)
    derivation = {"method": "four roundings of float32", "u": U}
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = float(np.where(scale == wanted, 0.0, np.abs(scale - wanted) / wanted).max())
    verdict.within(apart, Bound(4 * U, derivation), f"scale{what}", "scale")


def check_zero_point(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule) -> None:
    """Each zero point is an integer between the lowest and highest code, and the nearest one to the range's start."""
    scale, zero = broadcast(quantized)
    verdict.holds(bool((zero == np.rint(zero)).all()), "zero points are integers", signature="zero-point")
    inside = bool((zero >= rule.low).all() and (zero <= rule.high).all())
    verdict.holds(inside, "zero points are between the lowest and highest code", signature="zero-point")
    gap = zero_point_gap(values, scale, zero, rule)
    half = Bound(0.5 * (1 + NEAR_A_TIE), {"method": "half a code, from low - min / scale"})
    verdict.within(gap, half, "zero point", "zero-point")


def check_codes(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule, what: str = "") -> None:
    """Each code is the rule's for the reported scale, and dequantizes to its product with the scale."""
    scale, zero = broadcast(quantized)
    wrong = wrong_codes(values, quantized.codes, scale, zero, rule)
    verdict.equal(wrong, 0, f"codes{what} that are not the rule's", "codes")
    restored = (quantized.codes - zero) * scale
    gap = np.abs(quantized.values - restored)
    gap = np.divide(gap, np.maximum(np.abs(restored), scale), out=gap, where=gap != 0.0)
    derivation = {"method": "two roundings of float32", "u": U}
    verdict.within(float(gap.max()), Bound(2 * U, derivation), f"(code - zero point) * scale{what}", "restored")


def comes_back(verdict: Verdict, values: Array, quantized: Quantized, what: str) -> None:
    """Dequantized values are finite and within the bound, and zeros stay zero."""
    scale, _ = broadcast(quantized)
    verdict.finite({"scale": scale, "values": quantized.values}, what)
    excess = round_trip_excess(values, quantized.values, scale)
    derivation = {"method": "s/2 * (1 + 4u * (|x|/s + 1)), in units of itself", "u": U}
    verdict.within(excess, Bound(1.0, derivation), f"error of {what}", "round-trip")
    moved = int(np.count_nonzero(quantized.values[values == 0.0]))
    verdict.equal(moved, 0, f"zeros of {what} that moved", "zero-moved")


SCALE = Bound(4 * U, {"u": U, "roundings": 4.0})
"""Relative error of a scale: the reciprocal of a quotient, with two more roundings."""
WITHIN = Bound(1.0, {"bound": 1.0})
"""Derivation of a deviation in units of its own bound."""


def values_up_to(shape: tuple[int, ...], largest: float, seed: int | Sequence[int]) -> Array:
    """Values of both signs and of all magnitudes, float32, the largest of them `largest`, at any place."""
    rng = np.random.default_rng(seed)
    values = np.exp2(rng.uniform(-9, 0, shape)) * rng.choice([-1.0, 1.0], shape)
    values.flat[rng.integers(values.size)] = rng.choice([-1.0, 1.0])
    return np.asarray(values / np.abs(values).max() * largest, np.float32)


def stored_scales(maxima: Sequence[float], narrow: NarrowFormat, history: int) -> list[float]:
    """The stored scale after each step, from every step's amax.

    It follows the previous steps, at most `history` of them, and stays where their amax is 0 or not finite.
    """
    scales, last = [], 1.0
    for step in range(len(maxima)):
        most = float(np.max(maxima[max(0, step - history) : step], initial=0.0))
        last = most / narrow.largest if np.isfinite(most) and most > 0 else last
        scales.append(last)
    return scales


def as_codes_have_it(values: Array, scale: float, narrow: NarrowFormat) -> Array:
    """The values, float64, clipped to the format's range at this scale and rounded to its codes."""
    wide = np.clip(values.astype(np.float64) / scale, -narrow.largest, narrow.largest)
    return nearest(wide, narrow) * scale


def product_and_bound(left: Array, right: Array) -> tuple[Array, Array]:
    """The exact product of two float64 matrices, and the bound of one with float32 sums.

    (k + 1)·u·Σ|a||b| for k terms, with another rounding for each of two scales.
    """
    terms = left.shape[1] + 3
    return left @ right, terms * U * (np.abs(left) @ np.abs(right))


def furthest(measured: Array, expected: Array, bound: Array) -> float:
    """The largest deviation in units of its bound; NaN where a value is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(measured - expected)
        return float(np.max(np.where(apart == 0, 0.0, apart / bound)))
