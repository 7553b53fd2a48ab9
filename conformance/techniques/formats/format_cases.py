"""Calls of number formats: 8-bit casts, quantized matmuls, and packed codes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from conformance.search.checked_case import breaking
from conformance.techniques.formats.cases import Answer, Operands
from conformance.techniques.formats.checks import example
from conformance.techniques.formats.expected_casts import SOURCES, as_declared, nearest, unlike
from conformance.techniques.formats.expected_products import WITHIN, furthest, product_and_bound
from fixtures.arrays import Array
from fixtures.narrow import CODES, NARROW
from frameworks.contract import Framework, NumberFormats

INTEGERS = ("int8", "int8")
"""Formats of a product of integers."""


@dataclass(frozen=True)
class CastCall:
    """Values that are cast to a 8-bit format.

    Attributes:
        source: the format that they have.
        shape: of what is cast.
        special: how many of them are beyond the largest value, infinite or NaN.
    """

    format: str
    source: str
    shape: tuple[int, ...]
    special: int
    seed: int

    def words(self) -> frozenset[str]:
        special = {"cast=beyond"} if self.special else set()
        return frozenset({f"cast={self.format}", f"source={self.source}"} | special)

    def operands(self, framework: Framework) -> Operands:
        narrow, rng = NARROW[self.format], np.random.default_rng([self.seed, 32])
        steps, size = narrow.positive, math.prod(self.shape)
        place = rng.integers(0, len(steps) - 1, size)
        shares, special = [0.0, 0.25, 0.5, 0.75], [4 * narrow.largest, -1e4 * narrow.largest, np.inf, -np.inf, np.nan]
        if not narrow.signed:
            place = _near_one(place, steps)
            shares, special = [0.0, 0.25, 0.75], [np.nan]
        share = rng.choice(shares, size)
        wide = steps[place] + share * (steps[place + 1] - steps[place])
        wide *= rng.choice([-1.0, 1.0], size) if narrow.signed else 1.0
        where = rng.permutation(size)[: self.special]
        wide[where] = rng.choice(special, len(where))
        with np.errstate(over="ignore"):
            return (wide.reshape(self.shape).astype(SOURCES[self.source]),)

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        codes = framework.rule(NumberFormats).encode(operands[0], self.format)
        return {"codes": codes, "decoded": framework.rule(NumberFormats).decode(codes, self.format)}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        narrow, rule, codes = NARROW[self.format], framework.rule(NumberFormats).casts()[self.format], answer["codes"]
        wide, measured = operands[0].astype(np.float64), narrow.values()[codes]
        expected = as_declared(wide, narrow, rule)
        ordinary = np.isfinite(nearest(wide, narrow))
        for clause, mask in (("formats.round-to-nearest", ordinary), ("formats.overflow-as-declared", ~ordinary)):
            wrong = unlike(measured, expected) & mask
            with breaking(clause) as verdict:
                mismatch = example(wrong, wide, measured, expected)
                verdict.holds(not wrong.any(), f"casts to {self.format}", mismatch, "all", "casts")
        wrong = unlike(answer["decoded"].astype(np.float64), measured)
        with breaking("formats.decode") as verdict:
            mismatch = example(wrong, codes, answer["decoded"], measured)
            verdict.holds(not wrong.any(), f"values of codes of {self.format}", mismatch, "all", "decoded")


def _near_one(places: Array, steps: Array) -> Array:
    """The places, brought to values that float16 holds as normal ones."""
    one = int(np.searchsorted(steps, 1.0))
    return one - 14 + places % 28


@dataclass(frozen=True)
class CodeProduct:
    """A product of two matrices of codes, (n, k) and (k, m).

    Attributes:
        formats: of the operands, "int8" or an 8-bit format.
        extreme: whether all codes lie at the ends of the range.
    """

    formats: tuple[str, str]
    sizes: tuple[int, int, int]
    extreme: bool
    seed: int

    def words(self) -> frozenset[str]:
        return frozenset({f"product={'-by-'.join(self.formats)}"})

    def operands(self, framework: Framework) -> Operands:
        rng, (n, k, m) = np.random.default_rng([self.seed, 33]), self.sizes
        return tuple(self._codes(rng, name, shape) for name, shape in zip(self.formats, ((n, k), (k, m)), strict=True))

    def _codes(self, rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Array:
        if name == "int8":
            return rng.choice([-128, 127] if self.extreme else np.arange(-128, 128), shape).astype(np.int8)
        finite = CODES[np.isfinite(NARROW[name].values())]
        magnitude = np.abs(NARROW[name].values()[finite])
        return rng.choice(finite[magnitude == magnitude.max()] if self.extreme else finite, shape)

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        formats, (a, b) = framework.rule(NumberFormats), operands
        if self.formats == INTEGERS:
            return {"product": formats.integer_product(a, b)}
        return {"product": formats.float8_product(a, b, self.formats)}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        product, (a, b) = answer["product"], operands
        if self.formats == INTEGERS:
            with breaking("quantization.integer-products") as verdict:
                exact = a.astype(np.int64) @ b.astype(np.int64)
                verdict.equal(product.astype(np.int64), exact, "product of int8", "product")
            return
        decoded = (NARROW[name].values()[codes] for name, codes in zip(self.formats, operands, strict=True))
        with breaking("formats.products") as verdict:
            expected, bound = product_and_bound(*decoded)
            verdict.within(furthest(product, expected, bound), WITHIN, "products", "value")


@dataclass(frozen=True)
class Packing:
    """4-bit integers (rows, columns), packed two to a byte and unpacked again."""

    rows: int
    columns: int
    axis: Literal[0, 1]
    seed: int

    def words(self) -> frozenset[str]:
        return frozenset({"packed"})

    def operands(self, framework: Framework) -> Operands:
        rng = np.random.default_rng([self.seed, 34])
        return (rng.integers(-8, 8, (self.rows, self.columns)).astype(np.int8),)

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        packed = framework.rule(NumberFormats).packed(operands[0], self.axis)
        restored = framework.rule(NumberFormats).unpacked(packed, operands[0].shape[self.axis], self.axis)
        return {"packed": packed, "restored": restored}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        (codes,) = operands
        length = codes.shape[self.axis]
        with breaking("formats.packing") as verdict:
            halved = codes.size // length * ((length + 1) // 2)
            verdict.equal(answer["packed"].nbytes, halved, "bytes", "bytes")
            verdict.equal(answer["restored"], codes, "unpacked integers", "other-codes")
