"""How far two arrays are from each other, where infinities and what is not a number are among their values."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array, format_of


def unit(array: Array) -> float:
    """The unit in the last place of 1 in the array's format, float32's for what is not a float of a known format."""
    name = array.dtype.name if array.dtype.name in ("float16", "bfloat16", "float32") else "float32"
    return 2.0 * format_of(name).unit_roundoff


def narrow(array: Array) -> bool:
    """Whether float16 holds the value, so that it has few bits."""
    with np.errstate(over="ignore"):
        return equal(array.astype(np.float16), array)


def wide(array: Array) -> Array:
    """The array in float64."""
    return np.asarray(array).astype(np.float64)


def equal(a: Array, b: Array) -> bool:
    """Whether nothing lies between two arrays."""
    return distance(a, b) == 0.0


def distance(a: Array, b: Array) -> float:
    """The largest difference of an element; infinite between shapes, and between what is finite and what is not.

    What is not a number differs from no infinity, since which of the two comes out depends on the order of a sum.
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
