"""8-bit Adam: expected moments by the paper's codes, the nearest code, and rounding bounds.

Source: Dettmers et al. 2022, arXiv:2110.02861, section 2. u is the unit roundoff of float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.checks.subject import Subject, need_rule
from conformance.oracle.bound import Bound
from conformance.techniques import Technique
from fixtures.arrays import Array
from fixtures.recipe import Adam, Recipe
from frameworks.contract import Capability, EightBitRule
from frameworks.reference.quantization.eight_bit_state import EightBitState
from frameworks.reference.training.trainer import ReferenceTrainer

U = 2.0**-24
ROUNDINGS = 12.0
"""Roundings of a moment (a square, two products, a sum), of its quotient (a reciprocal, a product) and of distances
to two codes, each at most twice."""
PRODUCT = Bound(2 * U, {"u": U, "roundings": 2.0})
"""Relative error of a decoded value, which is a single product."""
OF_ITS_WAY = Bound(0.15, {"clause": 0.15, "half a step of the first moment's second decade, relative": 0.14})
"""Bound of the distance from an Adam run with float moments, relative to the distance that this run has moved.

An update is off by the relative errors of its moments, as if all had the same sign. Most moments of a block lie in its
upper two decades.
"""


def rule_of(subject: Subject) -> EightBitRule:
    """Return the rule with the values of the framework's codes; end the test if there is none."""
    return need_rule(subject, Capability.ADAM_8BIT, EightBitRule)


def paper_values(signed: bool) -> Array:
    """Return the 256 values of dynamic quantization, ascending, float64, each decoded from the bits of a code.

    After the sign bit, if there is one, leading zeros count decades down from 1 and a one ends them. The remaining bits
    number the middles of equal parts of that decade. The code without a one is 0; the remaining code is 1.
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
    """Return for each entry the value of its block, float64."""
    return np.repeat(largest.astype(np.float64), block)[:entries]


def block_maxima(values: Array, block: int) -> Array:
    """Return the absmax of each block of a flat array; the last block may be shorter."""
    return np.maximum.reduceat(np.abs(values), np.arange(0, len(values), block))


def excess_over_nearest(quotients: Array, decoded: Array, values: Array) -> Array:
    """Return by how much the codes' values are further from the quotients than the nearest codes' values."""
    above = np.clip(np.searchsorted(values, quotients), 1, len(values) - 1)
    nearest = np.minimum(np.abs(values[above] - quotients), np.abs(values[above - 1] - quotients))
    return np.asarray(np.abs(decoded - quotients) - nearest)


@dataclass(frozen=True, eq=False)
class MomentBeforeEncoding:
    """A flat moment before it is encoded: its exact value, and the sum of its terms' magnitudes, to scale rounding."""

    value: Array
    magnitude: Array

    @classmethod
    def after(cls, former: Array, gradient: Array, beta: float, *, squared: bool) -> MomentBeforeEncoding:
        """Return the moment after an update of the decoded moment `former`; beta and 1 - beta are float32 numbers."""
        old, new = former.astype(np.float64), gradient.astype(np.float64)
        added = (1.0 - beta) * (new * new if squared else new)
        return cls(beta * old + added, beta * np.abs(old) + np.abs(added))

    def code_error(self, codes: Array, largest: Array, values: Array, block: int) -> float:
        """Return the distance of codes from the nearest ones, in units of the rounding bound; NaN if a value is NaN.

        In a block whose absmax is 0 every decoded value is 0.
        """
        of_entries = expand_blocks(largest, len(self.value), block)
        decoded = np.where(of_entries == 0, 0.0, values[codes]).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(of_entries > 0, self.value / of_entries, self.value)
            slack = np.where(of_entries > 0, self.magnitude / of_entries, 0.0) * 2 * ROUNDINGS * U
            farther = excess_over_nearest(scaled, decoded, values.astype(np.float64))
            return float(np.max(np.where(farther <= 0, 0.0, farther / slack)))

    def absmax_error(self, largest: Array, block: int) -> float:
        """Return the error of the blocks' absmax, in units of the rounding bound."""
        exact, slack = block_maxima(self.value, block), ROUNDINGS * U * block_maxima(self.magnitude, block)
        gap = np.abs(largest.astype(np.float64) - exact)
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.max(np.where(gap == 0, 0.0, gap / slack)))


def first_update(rate: float, epsilon: float, gradient: float, weight: float) -> Bound:
    """Return the bound of the difference between first updates of two Adams, for the smallest gradient and the largest
    weight.

    Each has 16 roundings of a step of at most the rate, and one of the weight. Epsilon may join in different places.
    """
    value = rate * (32 * U + epsilon / gradient) + 2 * U * (weight + rate)
    return Bound(value, {"u": U, "rate": rate, "roundings": 16.0, "smallest gradient": gradient, "weight": weight})


def state_bytes(entries: int, block: int, smallest: int) -> int:
    """Return the bytes of both moments: a byte per entry and a float32 per block for each, or a float32 per entry."""
    return 2 * (entries + 4 * -(-entries // block)) if entries >= smallest else 8 * entries


EIGHT_BIT_STATE = Technique(
    recipes=(Recipe(Adam(state_bits=8)),),
    rows={"adam-8bit": "8-bit Adam"},
    clauses={"quantization.adam8-[!m]*": "adam-8bit"},
    places={EightBitState: ("eight_bit_class", ReferenceTrainer)},
)
