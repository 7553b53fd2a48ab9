"""Expected results of a cast to an 8-bit format, from the table of the format's values."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from fixtures.arrays import Array
from fixtures.narrow import NarrowFormat
from frameworks.contract import CastRule

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
    place = np.searchsorted(steps, np.abs(wide))
    high = steps[np.minimum(place, len(steps) - 1)]
    low = steps[np.maximum(np.minimum(place, len(steps) - 1) - 1, 0)]
    middle = (low + high) / 2
    even = np.where(place % 2 == 1, low, high)
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
