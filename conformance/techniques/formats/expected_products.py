"""Expected amax history and results of a delayed-scaling product, from the values of its steps.

u is the unit roundoff of float32: scales and sums may be computed in that format.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conformance.oracle.bound import Bound
from conformance.techniques.formats.expected_casts import nearest
from fixtures.arrays import Array
from fixtures.narrow import NarrowFormat

U = 2.0**-24
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
