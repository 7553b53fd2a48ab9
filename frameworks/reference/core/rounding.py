"""Rounding of float64 carriers to a narrower format: to nearest, at random, or not at all."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from fixtures.arrays import Array, format_of

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
"""Odd multipliers of the hash of a value's bits, as in SplitMix (Steele, Lea and Flood)."""
_CARRIER_BITS = 53  # significand bits of float64
LANES = 16
"""Least number of accumulators of a vectorised reduction."""


class Rounding(Protocol):
    """Rounding of float64 values to a format."""

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        """`array`, float64, with every value rounded to the format; the result is float64 again.

        `terms` is the number of terms in the sum that gave each value; an implementation may round after each addition.

        Raises:
            ValueError: the format is unknown.
        """

    def constant(self, value: float, format_name: str) -> float:
        """A hyperparameter rounded to the format; a value is rounded the same way throughout a run."""

    def dtype(self, format_name: str) -> np.dtype[Any]:
        """The dtype that represents every result of `round` for the format."""


class Nearest:
    """Rounds to nearest, ties to even, bit for bit as `astype` to the format and back; a sum is rounded once."""

    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        if format_name == "float64":
            return array
        return np.asarray(array).astype(format_of(format_name).dtype).astype(np.float64)

    def constant(self, value: float, format_name: str) -> float:
        return float(self.round(np.asarray(value, np.float64), format_name))

    def dtype(self, format_name: str) -> np.dtype[Any]:
        return format_of(format_name).dtype


class Stochastic:
    """Rounds to one of the two neighbours at random, up with the probability that makes the error's mean zero.

    The direction is a hash of the value and of a key that each call draws. Equal values of one call are therefore
    rounded alike, as real rounding does, so that their errors add up.
    A value between the largest finite one and the next power of two becomes infinite with its fraction's probability;
    subnormal results keep the format's spacing. A sum of n terms is rounded to √n units, the length of a random walk of
    n roundings, or to n / `LANES` units if that is more: equal terms (the background of an image) are all rounded in
    the same direction. A sum of no terms, such as the loss of a rank without samples, is rounded as a sum of one term.
    Source: Parker, "Monte Carlo Arithmetic", UCLA CSD-970002 (1997); Higham and Mary, "A new approach to probabilistic
    rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._constants: dict[tuple[float, str], float] = {}

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        if format_name == "float64":
            return array
        target = format_of(format_name)
        value = np.ascontiguousarray(array, np.float64).reshape(np.shape(array))
        dropped = _CARRIER_BITS - target.bits + round(math.log2(max(1.0, math.sqrt(terms), terms / LANES)))
        smallest = 2.0**target.smallest_exponent
        rounded = self._truncate_with_noise(value, dropped)
        magnitude = np.abs(value)
        ordinary = (magnitude >= smallest) & (magnitude <= target.largest)
        ordinary |= magnitude == 0.0
        if ordinary.all():
            return rounded
        rare = ~ordinary
        magnitude = magnitude[rare]
        # Below the smallest normal value, adding it gives the last kept bit the weight of the subnormal spacing.
        offset = np.where(magnitude < smallest, smallest, 0.0)
        result = self._truncate_with_noise(magnitude + offset, dropped) - offset
        result = np.where(result > target.largest, np.inf, result)
        rounded[rare] = np.where(np.isfinite(magnitude), np.copysign(result, value[rare]), value[rare])
        return rounded

    def _truncate_with_noise(self, value: Array, dropped: int) -> Array:
        """Adds random bits below the last kept one and cuts them off; the sign and exact values stay."""
        bits = value.reshape(-1).view(np.uint64)
        noise = bits ^ np.uint64(self._rng.integers(1 << 63))
        noise *= _MIX[0]
        noise ^= noise >> np.uint64(32)
        noise *= _MIX[1]
        noise >>= np.uint64(64 - dropped)
        noise += bits
        noise &= np.uint64((1 << 64) - (1 << dropped))
        return noise.view(np.float64).reshape(value.shape)

    def constant(self, value: float, format_name: str) -> float:
        if (value, format_name) not in self._constants:
            self._constants[value, format_name] = float(self.round(np.asarray(value, np.float64), format_name))
        return self._constants[value, format_name]

    def dtype(self, format_name: str) -> np.dtype[Any]:
        return format_of(format_name).dtype


class Exact:
    """Rounds nothing, as if every format were float64. This run is the centre of an ensemble's bounds."""

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        return array

    def constant(self, value: float, format_name: str) -> float:
        return value

    def dtype(self, format_name: str) -> np.dtype[Any]:
        format_of(format_name)
        return np.dtype(np.float64)
