"""Base of functions with branches, loops, views and updates in place, and the input of their examples."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fixtures.arrays import Array
from frameworks.base.shipped import BaseShipped

Function = Callable[[Any], Any]
SIZE = 4
"""Rows and columns of the input."""


class BaseFunctions(BaseShipped):
    """Functions of one array, by name."""

    functions: Mapping[str, Function]

    def names(self) -> tuple[str, ...]:
        return tuple(self.functions)


def square() -> Array:
    """The input: float32, between 1/4 and 3/2."""
    return np.random.default_rng(11).uniform(0.25, 1.5, (SIZE, SIZE)).astype(np.float32)
