"""The law of codes: quantizers, casts and products of codes follow their rules, in any order of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from conformance.judging.coded import check_codes, check_scale, check_zero_point
from conformance.judging.subject import Subject
from conformance.judging.verdict import Verdict, Violation, cleaned, same_bits, shown
from conformance.laws.declared import LawsOfAdapter
from conformance.laws.judging import Failure
from conformance.laws.operations import failed
from conformance.oracle import quantizing
from conformance.oracle.delayed_scaling import WITHIN, furthest, product_and_bound
from conformance.oracle.narrow_casts import SOURCES, nearest
from fixtures.arrays import Array
from fixtures.narrow import CODES, NARROW
from frameworks.contract import FakeRule, Framework

FAKE_ROUNDINGS = 3
"""Of a value that comes back: its product with the scale, and two more where a framework takes the largest value."""

Answer = dict[str, Array]
Checked = tuple[str, Callable[[Verdict], None]]
"""A clause, and the check that shows whether it holds."""


def first_broken(checks: Iterator[Checked]) -> Failure | None:
    """The first check that does not hold; the failure has the clause for a name."""
    for clause, check in checks:
        try:
            check(Verdict())
        except Violation as broken:
            return failed(clause, cleaned(str(broken)))
    return None


class CodedCall(Protocol):
    """A call whose result follows from its operands by a rule that the framework declares."""

    def words(self) -> frozenset[str]:
        """What exclusions may name."""

    def operands(self, framework: Framework) -> tuple[Array, ...]:
        """Its operands, made anew."""

    def answer(self, framework: Framework, operands: tuple[Array, ...]) -> Answer:
        """All that the framework gives for them."""

    def checks(self, framework: Framework, operands: tuple[Array, ...]) -> Iterator[Checked]:
        """What has to hold of the answer."""


@dataclass(frozen=True)
class CodedCalls:
    """Calls in a row; the first of them is made again in the end."""

    calls: tuple[CodedCall, ...]

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        return frozenset().union(*(call.words() for call in self.calls))

    def failure(self, subject: Subject, laws: LawsOfAdapter) -> Failure | None:  # noqa: ARG002
        """The first check that does not hold, an operand that changed, or another answer to the same call."""
        framework, first = subject.framework, self.calls[0]
        once = first.answer(framework, first.operands(framework))
        for call in self.calls:
            operands, untouched = (call.operands(framework) for _ in range(2))
            broken = first_broken(call.checks(framework, operands))
            if broken is not None:
                return Failure(0, broken.name, False, f"{call}: {broken.text}")
            if not all(same_bits(a, b) for a, b in zip(operands, untouched, strict=True)):
                return failed("laws.codes", f"{call}: an operand was {shown(untouched)} and is {shown(operands)}")
        again = first.answer(framework, first.operands(framework))
        if not same_bits(again, once):
            return failed(
                "laws.codes", f"{first} gives {shown(again)} after other calls, and gave {shown(once)} before"
            )
        return None

    def clause(self, subject: Subject, laws: LawsOfAdapter, failure: Failure) -> tuple[str, str]:  # noqa: ARG002
        """The clause that a failure breaks, and the sentence that says so."""
        return failure.name, failure.breaking(failure.name)


@dataclass(frozen=True)
class Matrix:
    """A drawn matrix: its shape, the exponents of its rows' magnitudes, its signs, and what is in it.

    Attributes:
        rows, columns: the shape.
        exponents: each row's magnitude is 2 to the next of these, over and over.
        sign: 1 or -1 for values of one sign, 0 for both.
        content: "normal", "one" value only, normal with "zeros", or "far" from zero in each row but one.
        seed: what values are drawn from.
    """

    rows: int
    columns: int
    exponents: tuple[int, ...]
    sign: int
    content: str
    seed: int

    def values(self) -> Array:
        """The matrix, float32."""
        rng = np.random.default_rng(self.seed)
        shape = self.rows, self.columns
        drawn = np.full(shape, 0.7) if self.content == "one" else rng.standard_normal(shape)
        if self.content == "zeros":
            drawn[rng.random(shape) < 0.5] = 0.0
        if self.content == "far":
            drawn[1:] += 50.0
        drawn = np.abs(drawn) * self.sign if self.sign else drawn
        magnitude = 2.0 ** np.resize(self.exponents, self.rows)
        return np.asarray(drawn * magnitude[:, None], np.float32)


@dataclass(frozen=True)
class QuantizerCall:
    """A matrix in the codes of a quantizer."""

    quantizer: str
    matrix: Matrix

    def words(self) -> frozenset[str]:
        return frozenset({f"quantizer={self.quantizer}"})

    def operands(self, framework: Framework) -> tuple[Array, ...]:  # noqa: ARG002
        return (self.matrix.values(),)

    def answer(self, framework: Framework, operands: tuple[Array, ...]) -> Answer:
        given = framework.quantizers().quantize(self.quantizer, operands[0])
        return {"codes": given.codes, "scale": given.scale, "zero point": given.zero_point, "values": given.values}

    def checks(self, framework: Framework, operands: tuple[Array, ...]) -> Iterator[Checked]:
        values, quantizers = operands[0], framework.quantizers()
        rule = quantizers.rules()[self.quantizer]
        given = quantizers.quantize(self.quantizer, values)
        yield "quantization.range-follows-data", lambda verdict: check_scale(verdict, values, given, rule, "")
        yield "quantization.range-follows-data", lambda verdict: check_zero_point(verdict, values, given, rule)
        yield "quantization.codes-as-declared", lambda verdict: check_codes(verdict, values, given, rule)


@dataclass(frozen=True)
class FakeCall:
    """A matrix that is quantized and brought back in one step, and its gradient.

    Attributes:
        rows, columns: the shape.
        exact: whether scales are powers of two, and half-way values among the others.
        beyond: how many codes values go beyond both ends of the range.
        seed: of values, scales and zero points.
    """

    quantizer: str
    rows: int
    columns: int
    exact: bool
    beyond: int
    seed: int

    def words(self) -> frozenset[str]:
        return frozenset({f"quantizer={self.quantizer}"} | ({"values=beyond"} if self.beyond else set()))

    def operands(self, framework: Framework) -> tuple[Array, ...]:
        """Values, scales and zero points."""
        rule, rng = framework.quantizers().fake_rules()[self.quantizer], np.random.default_rng([self.seed, 31])
        count = 1 if rule.axis is None else (self.rows, self.columns)[1 - rule.axis]
        scale = 2.0 ** rng.integers(-9, 5, count) * (1.0 if self.exact else rng.uniform(0.6, 0.9, count))
        scale, zero = scale.astype(np.float32), self._zero_points(rule, rng, count)
        shape = self.rows, self.columns
        codes = rng.integers(rule.low - self.beyond, rule.high + self.beyond + 1, shape)
        steps = rng.choice([-0.5, -0.25, 0.0, 0.25, 0.5], shape) if self.exact else rng.uniform(-0.4, 0.4, shape)
        wide, ends = (_along(each.astype(np.float64), rule.axis) for each in (scale, zero))
        return ((codes + steps - ends) * wide).astype(np.float32), scale, zero

    @staticmethod
    def _zero_points(rule: FakeRule, rng: np.random.Generator, count: int) -> Array:
        if rule.low < 0:
            return np.zeros(count, np.int32)
        return rng.integers(rule.low, rule.high + 1, count).astype(np.int32)

    def answer(self, framework: Framework, operands: tuple[Array, ...]) -> Answer:
        value, gradient = framework.quantizers().fake_quantize(self.quantizer, *operands)
        return {"values": value, "gradient": gradient}

    def checks(self, framework: Framework, operands: tuple[Array, ...]) -> Iterator[Checked]:
        rule = framework.quantizers().fake_rules()[self.quantizer]
        values, (scale, zero) = operands[0], (_along(each, rule.axis) for each in operands[1:])
        measured = self.answer(framework, operands)
        restored, slope = quantizing.fake(values, scale.astype(np.float64), zero, rule)
        allowed = (0.0 if self.exact else FAKE_ROUNDINGS * quantizing.U) * np.maximum(np.abs(restored), scale)
        gap = np.abs(measured["values"].astype(np.float64) - restored)
        differs = example(gap > allowed, values, measured["values"], restored)
        yield "quantization.fake-values", _none(differs, "fake-quantized values")
        other = example(measured["gradient"] != slope, values, measured["gradient"], slope)
        yield "quantization.straight-through", _none(other, "gradients")


def _along(each: Array, axis: Literal[0, 1] | None) -> Array:
    """Scales or zero points, broadcastable to the matrix."""
    return each[:, None] if axis == 1 else each


@dataclass(frozen=True)
class CastCall:
    """Values that are cast to a format of eight bits.

    Attributes:
        source: the format that they have.
        size: how many.
        special: how many of them are beyond the largest value, infinite or NaN.
    """

    format: str
    source: str
    size: int
    special: int
    seed: int

    def words(self) -> frozenset[str]:
        special = {"cast=beyond"} if self.special else set()
        return frozenset({f"cast={self.format}", f"source={self.source}"} | special)

    def operands(self, framework: Framework) -> tuple[Array, ...]:  # noqa: ARG002
        narrow, rng = NARROW[self.format], np.random.default_rng([self.seed, 32])
        steps = narrow.positive
        place = rng.integers(0, len(steps) - 1, self.size)
        share = rng.choice([0.0, 0.25, 0.5, 0.75], self.size)
        wide = (steps[place] + share * (steps[place + 1] - steps[place])) * rng.choice([-1.0, 1.0], self.size)
        where = rng.permutation(self.size)[: self.special]
        wide[where] = rng.choice([4 * narrow.largest, -1e4 * narrow.largest, np.inf, -np.inf, np.nan], len(where))
        with np.errstate(over="ignore"):
            return (wide.astype(SOURCES[self.source]),)

    def answer(self, framework: Framework, operands: tuple[Array, ...]) -> Answer:
        return {"codes": framework.formats().encode(operands[0], self.format)}

    def checks(self, framework: Framework, operands: tuple[Array, ...]) -> Iterator[Checked]:
        narrow, rule = NARROW[self.format], framework.formats().casts()[self.format]
        codes = self.answer(framework, operands)["codes"]
        wide, measured = operands[0].astype(np.float64), narrow.values()[codes]
        becomes = {"saturate": narrow.largest, "nan": np.nan, "inf": np.inf}
        expected = nearest(wide, narrow)
        beyond = np.isfinite(wide) & ~np.isfinite(expected)
        expected = np.where(beyond, np.copysign(becomes[rule.overflow], wide), expected)
        expected = np.where(np.isinf(wide), np.sign(wide) * becomes[rule.infinity], expected)
        expected = np.where(np.isnan(wide), np.nan, expected)
        same = (measured == expected) & (np.signbit(measured) == np.signbit(expected))
        wrong = ~(same | (np.isnan(measured) & np.isnan(expected)))
        ordinary = np.isfinite(wide) & ~beyond
        for clause, where in (
            ("formats.round-to-nearest", wrong & ordinary),
            ("formats.overflow-as-declared", wrong & ~ordinary),
        ):
            text = example(where, wide, measured, expected)
            yield clause, _none(text, "casts")
        decoded = framework.formats().decode(codes, self.format).astype(np.float64)
        other = example((decoded != measured) & ~(np.isnan(decoded) & np.isnan(measured)), codes, decoded, measured)
        yield "formats.decode", _none(other, "values of codes")


def _none(differs: str, what: str) -> Callable[[Verdict], None]:
    """Whether no place of them differs."""
    return lambda verdict: verdict.holds(not differs, what, differs)


def example(where: Array, values: Array, measured: Array, expected: Array) -> str:
    """How many places differ, and the first of them; "" where none does."""
    if not where.any():
        return ""
    place = tuple(int(index[0]) for index in np.nonzero(where))
    given, got, wanted = (float(each[place]) for each in (values, measured, expected))
    return f"{int(where.sum())} of {where.size}, first at {list(place)}: {got!r} for {given!r}, {wanted!r} by the rule"


@dataclass(frozen=True)
class CodeProduct:
    """A product of two matrices of codes, (n, k) and (k, m).

    Attributes:
        formats: of the operands, "int8" or a format of eight bits.
        extreme: whether all codes lie at the ends of the range.
    """

    formats: tuple[str, str]
    sizes: tuple[int, int, int]
    extreme: bool
    seed: int

    def words(self) -> frozenset[str]:
        return frozenset({f"product={'-by-'.join(self.formats)}"})

    def operands(self, framework: Framework) -> tuple[Array, ...]:  # noqa: ARG002
        rng, (n, k, m) = np.random.default_rng([self.seed, 33]), self.sizes
        return tuple(self._codes(rng, name, shape) for name, shape in zip(self.formats, ((n, k), (k, m)), strict=True))

    def _codes(self, rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Array:
        if name == "int8":
            return rng.choice([-128, 127] if self.extreme else np.arange(-128, 128), shape).astype(np.int8)
        finite = CODES[np.isfinite(NARROW[name].values())]
        magnitude = np.abs(NARROW[name].values()[finite])
        return rng.choice(finite[magnitude == magnitude.max()] if self.extreme else finite, shape)

    def answer(self, framework: Framework, operands: tuple[Array, ...]) -> Answer:
        formats, (a, b) = framework.formats(), operands
        if self.formats == ("int8", "int8"):
            return {"product": formats.integer_product(a, b)}
        return {"product": formats.float8_product(a, b, self.formats)}

    def checks(self, framework: Framework, operands: tuple[Array, ...]) -> Iterator[Checked]:
        product, (a, b) = self.answer(framework, operands)["product"], operands
        if self.formats == ("int8", "int8"):
            exact = a.astype(np.int64) @ b.astype(np.int64)
            wrong = example(product != exact, exact, product, exact)
            yield "quantization.integer-products", _none(wrong, "products")
            return
        decoded = (NARROW[name].values()[codes] for name, codes in zip(self.formats, operands, strict=True))
        expected, bound = product_and_bound(*decoded)
        yield (
            "formats.products",
            lambda verdict: verdict.within(furthest(product, expected, bound), WITHIN, "products", "value"),
        )


@dataclass(frozen=True)
class Packing:
    """Integers of four bits, (rows, columns), that are stored two to a byte and taken out again."""

    rows: int
    columns: int
    axis: Literal[0, 1]
    seed: int

    def words(self) -> frozenset[str]:
        return frozenset({"packed"})

    def operands(self, framework: Framework) -> tuple[Array, ...]:  # noqa: ARG002
        rng = np.random.default_rng([self.seed, 34])
        return (rng.integers(-8, 8, (self.rows, self.columns)).astype(np.int8),)

    def answer(self, framework: Framework, operands: tuple[Array, ...]) -> Answer:
        packed = framework.formats().packed(operands[0], self.axis)
        restored = framework.formats().unpacked(packed, operands[0].shape[self.axis], self.axis)
        return {"packed": packed, "restored": restored}

    def checks(self, framework: Framework, operands: tuple[Array, ...]) -> Iterator[Checked]:
        answer, codes = self.answer(framework, operands), operands[0]
        length = codes.shape[self.axis]
        halved = codes.size // length * ((length + 1) // 2)
        clause = "formats.packing"
        yield clause, lambda verdict: verdict.equal(answer["packed"].nbytes, halved, "bytes", "bytes")
        yield clause, lambda verdict: verdict.equal(answer["restored"], codes, "what is taken out", "other-codes")
