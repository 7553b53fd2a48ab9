"""8-bit Adam: expected moments by the paper's codes, the nearest code, and rounding bounds.

Source: Dettmers et al. 2022, arXiv:2110.02861, section 2. u is the unit roundoff of float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.oracle.bound import Bound
from conformance.techniques.technique import Technique
from fixtures.arrays import Array
from fixtures.recipe import Adam, Recipe
from frameworks.reference.quantization.float8 import EightBitState
from frameworks.reference.training.trainer import ReferenceTrainer

U = 2.0**-24
ROUNDINGS = 12.0
"""Of a moment (a square, two products, a sum), of the quotient (a reciprocal, a product) and of distances to two codes,
each twice at most."""
PRODUCT = Bound(2 * U, {"u": U, "roundings": 2.0})
"""Relative error of a decoded value, which is one product."""
OF_ITS_WAY = Bound(0.15, {"clause": 0.15, "half a step of the first moment's second decade, relative": 0.14})
"""Bound of the distance from a float Adam run, relative to the distance that the latter has moved.

An update is off by its moments' relative errors, as if all had the same sign. Most moments of a block are in its upper
two decades.
"""


def paper_values(signed: bool) -> Array:
    """The 256 values of dynamic quantization, ascending, float64, each read from the bits of a code.

    Behind the sign, where there is one, zeros count decades down from 1, a one ends them, and the bits that are left
    number the middles of equal parts of that decade. A code without a one is 0; the one that is left over is 1.
    """
    bits = 7 if signed else 8
    values = [0.0, 1.0]
    for code in range(1, 2**bits):
        decade = bits - code.bit_length()
        if decade == 7:
            continue
        parts = 2 ** (code.bit_length() - 1)
        value = 10.0**-decade * (0.1 + 0.9 * (code - parts + 0.5) / parts)
        values += [value, -value] if signed else [value]
    return np.sort(np.array(values))


def expand_blocks(largest: Array, entries: int, block: int) -> Array:
    """For each entry the value of its block, float64."""
    return np.repeat(largest.astype(np.float64), block)[:entries]


def block_maxima(values: Array, block: int) -> Array:
    """The absmax of each block of a flat array; the last block may be shorter."""
    return np.maximum.reduceat(np.abs(values), np.arange(0, len(values), block))


def beyond_the_nearest(quotients: Array, decoded: Array, values: Array) -> Array:
    """Excess distance of the given codes' values from the quotients, compared with the nearest codes."""
    above = np.clip(np.searchsorted(values, quotients), 1, len(values) - 1)
    nearest = np.minimum(np.abs(values[above] - quotients), np.abs(values[above - 1] - quotients))
    return np.asarray(np.abs(decoded - quotients) - nearest)


@dataclass(frozen=True, eq=False)
class MomentBeforeEncoding:
    """A moment before it is encoded, flat: exact, and the sum of its terms' magnitudes, which its rounding follows."""

    value: Array
    magnitude: Array

    @classmethod
    def after(cls, former: Array, gradient: Array, beta: float, *, squared: bool) -> MomentBeforeEncoding:
        """The moment after an update of a decoded moment; beta and 1 - beta are float32 numbers."""
        old, new = former.astype(np.float64), gradient.astype(np.float64)
        added = (1.0 - beta) * (new * new if squared else new)
        return cls(beta * old + added, beta * np.abs(old) + np.abs(added))

    def off(self, codes: Array, largest: Array, values: Array, block: int) -> float:
        """Distance of codes from the nearest ones, in units of the rounding bound; NaN where there is none.

        In a block whose absmax is 0 every decoded value is 0.
        """
        of_entries = expand_blocks(largest, len(self.value), block)
        decoded = np.where(of_entries == 0, 0.0, values[codes]).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(of_entries > 0, self.value / of_entries, self.value)
            slack = np.where(of_entries > 0, self.magnitude / of_entries, 0.0) * 2 * ROUNDINGS * U
            farther = beyond_the_nearest(scaled, decoded, values.astype(np.float64))
            return float(np.max(np.where(farther <= 0, 0.0, farther / slack)))

    def largest_off(self, largest: Array, block: int) -> float:
        """Error of the blocks' absmax, in units of the rounding bound."""
        exact, slack = block_maxima(self.value, block), ROUNDINGS * U * block_maxima(self.magnitude, block)
        apart = np.abs(largest.astype(np.float64) - exact)
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.max(np.where(apart == 0, 0.0, apart / slack)))


def first_update(rate: float, epsilon: float, gradient: float, weight: float) -> Bound:
    """Bound of the difference between the first updates of two Adams, from the smallest gradient and the largest
    weight.

    Each has 16 roundings of a step of at most the rate, and one of the weight; epsilon may join in different places.
    """
    value = rate * (32 * U + epsilon / gradient) + 2 * U * (weight + rate)
    return Bound(value, {"u": U, "rate": rate, "roundings": 16.0, "smallest gradient": gradient, "weight": weight})


def state_bytes(entries: int, block: int, smallest: int) -> int:
    """Bytes of both moments: a byte an entry and a float32 a block of each, or a float32 an entry."""
    return 2 * (entries + 4 * -(-entries // block)) if entries >= smallest else 8 * entries


EIGHT_BIT_STATE = Technique(
    recipes=(Recipe(Adam(state_bits=8)),),
    rows={"adam-8bit": "8-bit Adam"},
    clauses={"quantization.adam8-[!m]*": "adam-8bit"},
    places={EightBitState: ("eight_bit_class", ReferenceTrainer)},
)
