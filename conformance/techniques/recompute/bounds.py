"""Bounds of the value and gradients of Σ tanh(x·w), which `Framework.recompute` runs.

The ensemble is that of `conformance.oracle.errormodel`: reference runs whose roundings go up or down at random.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.oracle.bound import Bound
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, SAMPLES, distance
from fixtures.arrays import Array, format_of
from frameworks.contract import RecomputeResult
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact, Rounding, Stochastic


def function_bounds(x: Array, w: Array, seed: int) -> dict[str, Bound]:
    """Bounds of the relative 2-norm distance from the exact run in float32, of "value", "x" and "w".

    Args:
        x, w: float32, (n, m) and (m, k).
    """

    def values_of(rounding: Rounding) -> Mapping[str, Array]:
        return parts(ReferenceFramework("cpu", rounding=rounding).recompute("plain", x, w))

    exact = values_of(Exact())
    members = [values_of(Stochastic(np.random.default_rng([seed, 12, i]))) for i in range(SAMPLES)]
    unit = format_of("float32").unit_roundoff
    derivation = {
        "method": "ensemble of randomly rounded reference runs",
        "format": "float32",
        "unit_roundoff": unit,
        "samples": SAMPLES,
        "multiplier": IMPLEMENTATION_FREEDOM,
        "seed": seed,
    }
    spreads = {name: max(unit, *(distance(m[name], exact[name]) for m in members)) for name in exact}
    return {name: Bound(IMPLEMENTATION_FREEDOM * spread, derivation) for name, spread in spreads.items()}


def parts(result: RecomputeResult) -> dict[str, Array]:
    """The value and the gradients for x and w of a result, as float64; a missing gradient is omitted."""
    arrays = {"value": np.asarray(result.value), "x": result.x, "w": result.w}
    return {name: array.astype(np.float64) for name, array in arrays.items() if array is not None}
