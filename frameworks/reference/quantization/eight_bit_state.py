"""8-bit optimizer state: moments as codes in blocks, each with its absmax, and the stored arrays of moments.

Source: Dettmers et al. 2022, arXiv:2110.02861, section 2: dynamic quantization with blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np

from fixtures.arrays import Array, format_of
from fixtures.recipe import Adam

DECADES = 7
"""Powers of ten that the codes of an 8-bit moment cover."""

Moments = MutableMapping[str, Array]
"""Moments of one slot, by parameter name."""


class EightBitState:
    """Encoding and decoding of 8-bit moments. Faults override a method."""

    def __init__(self, optimizer: Adam) -> None:
        self.optimizer = optimizer

    def encodes(self, size: int) -> bool:
        """Returns whether the moments of a parameter with `size` entries are 8-bit."""
        return size >= self.optimizer.smallest

    def is_signed(self, slot: str) -> bool:
        """Returns whether the codes of a moment have both signs."""
        return slot == "first_moment"

    def values(self, slot: str) -> Array:
        """The codes' values, ascending, (256,) float32: 0, 1, and the midpoints of equal parts of each decade.

        A decade has twice as many parts as the decade below it. An unsigned moment has twice the parts of a signed one.
        """
        parts = [2 ** (decade + (not self.is_signed(slot))) for decade in range(DECADES)]
        positive = [
            10.0 ** (decade + 1 - DECADES) * (0.1 + 0.9 * (np.arange(count) + 0.5) / count)
            for decade, count in enumerate(parts)
        ]
        values = np.concatenate(
            [[0.0, 1.0], *positive, *([-value for value in positive] if self.is_signed(slot) else [])]
        )
        return np.sort(values).astype(np.float32)

    def blocks(self, flat: Array) -> Array:
        """The entries in blocks, (blocks, block); the last block is padded with zeros."""
        short = -len(flat) % self.optimizer.block
        return np.append(flat, np.zeros(short)).reshape(-1, self.optimizer.block)

    def largest(self, blocks: Array) -> Array:
        """The absmax of each block, float32."""
        return np.asarray(np.abs(blocks).max(axis=1), np.float32)

    def nearest(self, quotients: Array, values: Array) -> Array:
        """The code of the nearest value; the lower of two equally near codes."""
        middles = (values[:-1].astype(np.float64) + values[1:]) / 2
        return np.searchsorted(middles, quotients).astype(np.uint8)

    def encode(self, slot: str, moment: Array) -> tuple[Array, Array]:
        """Codes in the moment's shape, and the absmax of each block."""
        blocks = self.blocks(moment.ravel())
        largest = self.largest(blocks)
        divisors = np.where(largest > 0, largest, 1.0).astype(np.float64)
        codes = self.nearest(blocks / divisors[:, None], self.values(slot))
        return codes.ravel()[: moment.size].reshape(moment.shape), largest

    def decode(self, slot: str, codes: Array, largest: Array) -> Array:
        """The decoded moment, in float32, as a float64 carrier."""
        of_entries = np.repeat(largest, self.optimizer.block)[: codes.size].reshape(codes.shape)
        return (self.values(slot)[codes] * of_entries).astype(np.float64)


class EightBitMoments(Moments):
    """Moments of one slot by parameter; those of large parameters are encoded on assignment.

    Attributes:
        state: the encoding.
        plain: moments of small parameters, by parameter name.
        codes: codes of large parameters, uint8, by parameter name.
        largest: absmax of each block, float32, by parameter name.
    """

    def __init__(self, state: EightBitState, slot: str, plain: Moments, codes: Moments, largest: Moments) -> None:
        self.state, self._slot = state, slot
        self.plain, self.codes, self.largest = plain, codes, largest

    def __getitem__(self, name: str) -> Array:
        if name not in self.codes:
            return self.plain[name]
        return self.state.decode(self._slot, self.codes[name], self.largest[name])

    def __setitem__(self, name: str, moment: Array) -> None:
        if self.state.encodes(moment.size):
            self.codes[name], self.largest[name] = self.state.encode(self._slot, moment)
        else:
            self.plain[name] = moment

    def __delitem__(self, name: str) -> None:
        for part in (self.plain, self.codes, self.largest):
            part.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        yield from self.plain
        yield from self.codes

    def __len__(self) -> int:
        return len(self.plain) + len(self.codes)


def parts_of(slot: str, moments: Moments) -> dict[str, Moments]:
    """The stored arrays of a slot's moments, by their prefix in a checkpoint."""
    if not isinstance(moments, EightBitMoments):
        return {f"slot.{slot}": moments}
    return {f"slot.{slot}": moments.plain, f"codes.{slot}": moments.codes, f"absmax.{slot}": moments.largest}


def stored_moments(slots: Mapping[str, Moments]) -> list[Moments]:
    """The stored arrays of all slots' moments."""
    return [part for slot, moments in slots.items() for part in parts_of(slot, moments).values()]


def bytes_of(arrays: Mapping[str, Array], formats: Mapping[str, str]) -> int:
    """Bytes of arrays: float64 arrays are carriers, counted in their named format; others count as they are."""
    return sum(
        value.size * format_of(formats[name]).dtype.itemsize if value.dtype == np.float64 else value.nbytes
        for name, value in arrays.items()
    )
