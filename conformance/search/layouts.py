"""Memory layouts of arrays that are passed to a framework."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fixtures.arrays import Array

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
