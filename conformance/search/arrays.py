"""Distances between arrays that may contain infinities and NaN, memory layouts, canonical names of a run's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from fixtures.arrays import Array, format_of
from frameworks.contract import Conventions


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


Layout = Literal["rows", "columns", "strided"]
LAYOUTS: tuple[Layout, ...] = ("rows", "columns", "strided")


def laid_out(array: Array, layout: Layout) -> Array:
    """The same values in C order, transposed, or as every second element of a larger array."""
    match layout:
        case "columns":
            return np.asfortranarray(array)
        case "strided" if array.ndim:
            apart = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            apart[..., ::2] = array
            return apart[..., ::2]
        case _:
            return np.ascontiguousarray(array)


def nth(count: int) -> Layout:
    """The layouts in turn."""
    return LAYOUTS[count % len(LAYOUTS)]


Observation = dict[str, Array]

COMPARED = (
    *("result/", "parameter/", "master/", "buffer/", "scaler/", "accumulator/", "moment/", "steps/", "average/"),
    "window/",
)
REFERENCE_MOMENTS = {slot: slot for slot in ("momentum", "first_moment", "second_moment")}
STEPS = "steps"


def canonical(observation: Observation, moments: Mapping[str, str]) -> Observation:
    """An observation, with the optimizer's state as "moment/SLOT/PARAMETER", "steps/PARAMETER", "average/PARAMETER".

    Args:
        moments: the canonical slot by the framework's own; a slot that is not there is left out.
    """
    named: Observation = {}
    for name, value in observation.items():
        if not name.startswith("optimizer/"):
            named[name] = value
            continue
        slot, _, parameter = name.removeprefix("optimizer/").partition("/")
        if slot.startswith("steps."):
            named[f"steps/{slot.removeprefix('steps.')}"] = value
        elif slot == "average" and parameter:
            named[f"average/{parameter}"] = value
        elif not parameter and slot in ("steps", "schedule"):
            named[f"steps/{slot}"] = value
        elif parameter and (moment := moments.get(slot)):
            named[f"steps/{parameter}" if moment == STEPS else f"moment/{moment}/{parameter}"] = value
    return {name: value for name, value in named.items() if name.startswith(COMPARED)}


def ends_by_itself(conventions: Conventions) -> bool:
    """Whether the framework ends a window itself with its last micro-batch, so that `apply` only reports."""
    return conventions.remainder != "flush"
