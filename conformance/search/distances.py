"""Distances between arrays that may contain infinities and NaN."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array, format_of


def unit(array: Array) -> float:
    """The unit in the last place of 1 in the array's format, float32's for what is not a float of a known format."""
    name = array.dtype.name if array.dtype.name in ("float16", "bfloat16", "float32") else "float32"
    return 2.0 * format_of(name).unit_roundoff


def narrow(array: Array) -> bool:
    """Whether float16 can represent the values, so that they have few bits."""
    with np.errstate(over="ignore"):
        return equal(array.astype(np.float16), array)


def wide(array: Array) -> Array:
    """The array in float64."""
    return np.asarray(array).astype(np.float64)


def equal(a: Array, b: Array) -> bool:
    """Whether the distance of two arrays is 0."""
    return distance(a, b) == 0.0


def distance(a: Array, b: Array) -> float:
    """The largest difference of an element; infinite for different shapes, or if only one value is finite.

    NaN equals infinities, since the order of a sum decides which of the two results.
    """
    if a.shape != b.shape:
        return float("inf")
    if a.dtype == b.dtype and a.tobytes() == b.tobytes():
        return 0.0
    return float(gaps(wide(a).ravel(), wide(b).ravel()).max(initial=0.0))


def gaps(left: Array, right: Array) -> Array:
    """The difference of each element of two float64 vectors, as `distance` has it."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(left - right)
    finite = np.isfinite(left) | np.isfinite(right)
    same = (left == right) | ((np.isnan(left) | np.isnan(right)) & ~finite)
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))
