"""A value with its nominal format, and differentiable casts and rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive
from autograd.tracer import getval, isbox

from fixtures.arrays import FORMATS, Array
from frameworks.reference.core.rounding import Rounding


@dataclass(frozen=True, eq=False)
class Tensor:
    """A float64 carrier (or an autograd box around one) whose values belong to `format`; integers carry themselves.

    `owned` is False for parameters and inputs and for their copies in other formats: what they take is not counted as
    saved for backward.
    """

    value: Any
    format: str
    owned: bool = True

    @property
    def floating(self) -> bool:
        """Whether it has a floating-point format."""
        return self.format in FORMATS

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return tuple(self.value.shape)

    @property
    def bytes(self) -> int:
        """Bytes that the value takes in its format."""
        size = FORMATS[self.format].dtype.itemsize if self.floating else np.dtype(self.format).itemsize
        return int(np.prod(self.shape)) * size

    def plain(self) -> Array:
        """The value without any box."""
        return plain(self.value)


def plain(value: Any) -> Array:
    """`value` without the boxes of any trace."""
    while isbox(value):
        value = getval(value)
    return np.asarray(value)


def tensor(array: Array, owned: bool = True) -> Tensor:
    """The array in its own format, on a float64 carrier if that is a floating-point one."""
    name = array.dtype.name
    return Tensor(array.astype(np.float64) if name in FORMATS else array, name, owned)


@primitive
def rounded(x: Array, rounding: Rounding, format_name: str, terms: int = 1) -> Array:
    """x, a sum of `terms` values, rounded to the format; so is the gradient that comes back."""
    return rounding.round(x, format_name, terms)


defvjp(rounded, lambda _ans, _x, rounding, name, terms=1: lambda g: rounding.round(g, name, terms), None, None, None)


@primitive
def _converted(x: Array, rounding: Rounding, source: str, target: str) -> Array:
    del source
    return rounding.round(x, target)


defvjp(
    _converted,
    lambda _ans, _x, rounding, source, target: lambda g: rounding.round(rounding.round(g, target), source),
    None,
    None,
    None,
)


def converted(x: Tensor, target: str, rounding: Rounding) -> Tensor:
    """x in another format. The gradient of a cast is a cast: it is rounded to `target`, then to x's format."""
    if x.format == target:
        return x
    return Tensor(_converted(x.value, rounding, x.format, target), target, x.owned)
