"""The law of codes: quantizers, casts and quantized matmuls follow their rules in any order of calls."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.checks.evidence import same_bits
from conformance.checks.subject import Subject
from conformance.search.properties import LAYOUTS, CheckedInstance, ClauseBroken, Layout, breaking, laid_out
from conformance.techniques.formats import checks
from conformance.techniques.formats.checks import (
    SOURCES,
    WITHIN,
    as_declared,
    check_codes,
    check_scale,
    check_zero_point,
    example,
    furthest,
    nearest,
    product_and_bound,
    unlike,
)
from fixtures.arrays import CODES, NARROW, Array
from frameworks.contract import Capability, FakeRule, Framework, NumberFormats, Quantized, Quantizers, QuantRule

CLAUSE = "laws.codes"
FAKE_ROUNDINGS = 3
"""Roundings of a dequantized value: its product with the scale, and two more where a framework takes the largest
value."""

Operands = tuple[Array, ...]
Answer = dict[str, Array]


class CodedCall(Protocol):
    """A call whose result follows from its operands by a rule that the framework declares."""

    def words(self) -> frozenset[str]:
        """What exclusions may name."""

    def operands(self, framework: Framework) -> Operands:
        """Its operands, newly allocated."""

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        """The framework's results."""

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        """Checks the answer against the rule.

        Raises:
            ClauseBroken: it differs.
        """


@dataclass(frozen=True)
class CodedCalls(CheckedInstance):
    """Consecutive calls; the first one is repeated at the end.

    Attributes:
        layout: how their operands lie in memory.
    """

    calls: tuple[CodedCall, ...]
    layout: Layout = "rows"

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        return frozenset().union(*(call.words() for call in self.calls))

    def check(self, subject: Subject) -> None:
        """Checks each answer, that operands are unchanged, and that the first call gives the same answer again."""
        framework, first = subject.framework, self.calls[0]
        answers = [self._check_call(framework, call) for call in self.calls]
        again = first.answer(framework, self._operands(framework, first))
        with breaking(CLAUSE) as verdict:
            verdict.same_state(again, answers[0], f"{first} after other calls", "calls-depend")

    def _operands(self, framework: Framework, call: CodedCall) -> Operands:
        return tuple(laid_out(operand, self.layout) for operand in call.operands(framework))

    def _check_call(self, framework: Framework, call: CodedCall) -> Answer:
        operands, untouched = (self._operands(framework, call) for _ in range(2))
        answer = call.answer(framework, operands)
        with breaking(CLAUSE) as verdict:
            same = all(same_bits(a, b) for a, b in zip(operands, untouched, strict=True))
            verdict.holds(same, f"operands of {call} after the call", operands, untouched, "operand-changed")
        try:
            call.check(framework, operands, answer)
        except ClauseBroken as broken:
            raise ClauseBroken(broken.clause, f"{call}: {broken}") from None
        return answer


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

    def operands(self, framework: Framework) -> Operands:
        return (self.matrix.values(),)

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        return dict(vars(framework.rule(Quantizers).quantize(self.quantizer, operands[0])))

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        rule = framework.rule(Quantizers).rules()[self.quantizer]
        values, quantized = operands[0], Quantized(**answer)
        with breaking("quantization.range-follows-data") as verdict:
            check_scale(verdict, values, quantized, rule, "")
            check_zero_point(verdict, values, quantized, rule)
        with breaking("quantization.codes-as-declared") as verdict:
            check_codes(verdict, values, quantized, rule)


@dataclass(frozen=True)
class SpoiltCall:
    """A matrix with one value that is not finite, in the codes of a quantizer.

    Attributes:
        value: NaN or an infinity.
        row, column: where it stands, as shares of the matrix in [0, 1).
    """

    quantizer: str
    matrix: Matrix
    value: float
    row: float
    column: float

    def words(self) -> frozenset[str]:
        return frozenset({f"quantizer={self.quantizer}", "quantizer=spoilt"})

    @property
    def _place(self) -> tuple[int, int]:
        return int(self.row * self.matrix.rows), int(self.column * self.matrix.columns)

    def operands(self, framework: Framework) -> Operands:
        values = self.matrix.values()
        values[self._place] = self.value
        return (values,)

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        """The dequantized values; empty if the framework refuses the input."""
        try:
            return {"values": framework.rule(Quantizers).quantize(self.quantizer, operands[0]).values}
        except (ValueError, RuntimeError, ArithmeticError):
            return {}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        if not answer:
            return
        quantizers, after = framework.rule(Quantizers), answer["values"]
        before = quantizers.quantize(self.quantizer, self.matrix.values()).values
        measured = float(after[self._place])
        swallowed = np.isfinite(measured) and np.sign(measured) != np.sign(self.value)
        others = ~self._range(quantizers.rules()[self.quantizer])
        with breaking("quantization.non-finite") as verdict:
            verdict.holds(not swallowed, f"{self.value} is not swallowed", measured, self.value, "swallowed")
            verdict.equal(after[others], before[others], "the other ranges", "disturbed")

    def _range(self, rule: QuantRule) -> Array:
        """Positions that share a range with the non-finite value."""
        where = np.zeros((self.matrix.rows, self.matrix.columns), bool)
        if rule.axis is None:
            return ~where
        index: list[int | slice] = [*self._place]
        size = rule.group or where.shape[rule.axis]
        first = self._place[rule.axis] // size * size
        index[rule.axis] = slice(first, first + size)
        where[tuple(index)] = True
        return where


@dataclass(frozen=True)
class FakeCall:
    """A fake-quantized matrix, and its gradient.

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
        return frozenset({f"quantizer={self.quantizer}"} | ({"fake=beyond"} if self.beyond else set()))

    def operands(self, framework: Framework) -> Operands:
        """Values, scales and zero points."""
        rule, rng = framework.rule(Quantizers).fake_rules()[self.quantizer], np.random.default_rng([self.seed, 31])
        count = 1 if rule.axis is None else (self.rows, self.columns)[1 - rule.axis]
        scale = 2.0 ** rng.integers(-9, 5, count) * (1.0 if self.exact else rng.uniform(0.6, 0.9, count))
        scale, zero = scale.astype(np.float32), self._zero_points(rule, rng, count)
        shape = self.rows, self.columns
        codes = rng.integers(rule.low - self.beyond, rule.high + self.beyond + 1, shape)
        steps = rng.choice([-0.5, -0.25, 0.0, 0.25, 0.5], shape) if self.exact else rng.uniform(-0.4, 0.4, shape)
        wide, ends = (_along(array.astype(np.float64), rule.axis) for array in (scale, zero))
        return ((codes + steps - ends) * wide).astype(np.float32), scale, zero

    @staticmethod
    def _zero_points(rule: FakeRule, rng: np.random.Generator, count: int) -> Array:
        if rule.low < 0:
            return np.zeros(count, np.int32)
        return rng.integers(rule.low, rule.high + 1, count).astype(np.int32)

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        value, gradient = framework.rule(Quantizers).fake_quantize(self.quantizer, *operands)
        return {"values": value, "gradient": gradient}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        rule = framework.rule(Quantizers).fake_rules()[self.quantizer]
        values, (scale, zero) = operands[0], (_along(array, rule.axis) for array in operands[1:])
        restored, slope = checks.fake(values, scale.astype(np.float64), zero, rule)
        allowed = (0.0 if self.exact else FAKE_ROUNDINGS * checks.U) * np.maximum(np.abs(restored), scale)
        measured = answer["values"].astype(np.float64)
        far = ~(np.abs(measured - restored) <= allowed)
        other = answer["gradient"] != slope
        with breaking("quantization.fake-values") as verdict:
            mismatch = example(far, values, measured, restored)
            verdict.holds(not far.any(), "fake-quantized values", mismatch, "all", "values")
        with breaking("quantization.straight-through") as verdict:
            mismatch = example(other, values, answer["gradient"], slope)
            verdict.holds(not other.any(), "gradients", mismatch, "all", "gradient")


def _along(values: Array, axis: Literal[0, 1] | None) -> Array:
    """Scales or zero points, broadcastable to the matrix."""
    return values[:, None] if axis == 1 else values


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
        index = rng.integers(0, len(steps) - 1, size)
        shares, special = [0.0, 0.25, 0.5, 0.75], [4 * narrow.largest, -1e4 * narrow.largest, np.inf, -np.inf, np.nan]
        if not narrow.signed:
            index = _near_one(index, steps)
            shares, special = [0.0, 0.25, 0.75], [np.nan]
        share = rng.choice(shares, size)
        wide = steps[index] + share * (steps[index + 1] - steps[index])
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
        packed = framework.rule(NumberFormats).pack(operands[0], self.axis)
        restored = framework.rule(NumberFormats).unpack(packed, operands[0].shape[self.axis], self.axis)
        return {"packed": packed, "restored": restored}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        (codes,) = operands
        length = codes.shape[self.axis]
        with breaking("formats.packing") as verdict:
            halved = codes.size // length * ((length + 1) // 2)
            verdict.equal(answer["packed"].nbytes, halved, "bytes", "bytes")
            verdict.equal(answer["restored"], codes, "unpacked integers", "other-codes")


QUANTIZERS = ("int8-tensor", "int8-row", "int8-column", "uint8-tensor", "int4-group")
FAKE_QUANTIZERS = ("fake-int8-tensor", "fake-int8-column", "fake-uint8-tensor", "fake-int4-tensor")
PRODUCTS = (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"))
"""Formats of the forward pass, and of gradients, which need a wider range."""
_SEEDS = st.integers(0, 2**16)
_SMALL, _LARGE = st.integers(1, 9), st.sampled_from([16, 31, 64, 65, 129, 257, 1025])
_SIDES = _SMALL | _LARGE


def matrices(
    rows: SearchStrategy[int], columns: SearchStrategy[int], contents: Collection[str]
) -> SearchStrategy[Matrix]:
    """Matrices of these sizes, whose rows have magnitudes of their own."""
    return st.builds(
        Matrix,
        rows=rows,
        columns=columns,
        exponents=st.lists(st.integers(-40, 40), min_size=1, max_size=4).map(tuple),
        sign=st.sampled_from([0, 1, -1]),
        content=st.sampled_from(sorted(contents)),
        seed=_SEEDS,
    )


MATRICES = matrices(_SIDES, st.integers(1, 67) | _LARGE, ("normal", "one", "zeros", "far"))


def draw_calls(framework: Framework) -> SearchStrategy[CodedCalls]:
    """One to three calls of any kind that a framework declares."""
    calls = st.lists(st.one_of(_kinds(framework)), min_size=1, max_size=3).map(tuple)
    return st.builds(CodedCalls, calls, st.sampled_from(LAYOUTS))


def _kinds(framework: Framework) -> list[SearchStrategy[CodedCall]]:
    """Calls by kind; where nothing is declared, one that is refused."""

    def select(prefix: str, names: Collection[str]) -> list[str]:
        return [name for name in names if framework.declares(Capability(f"{prefix}.{name}")).supported]

    quantizers, fakes = select("quantization", QUANTIZERS), select("quantization", FAKE_QUANTIZERS)
    casts = select("formats", sorted(NARROW))
    products = [INTEGERS] * framework.declares(Capability.INTEGER_PRODUCTS).supported
    products += PRODUCTS * framework.declares(Capability.FLOAT8_PRODUCTS).supported
    kinds: list[SearchStrategy[CodedCall]] = []
    if quantizers:
        kinds.append(st.builds(QuantizerCall, st.sampled_from(quantizers), MATRICES))
        kinds.append(_spoilt(quantizers))
    if fakes:
        kinds.append(_fake(fakes))
    if casts:
        shapes = st.tuples(_SIDES | st.sampled_from([4099, 70_001])) | st.tuples(_SMALL, _SIDES)
        source = st.sampled_from(sorted(SOURCES))
        special = st.sampled_from([0, 0, 1, 3])
        kinds.append(st.builds(CastCall, st.sampled_from(casts), source, shapes, special, _SEEDS))
    if products:
        sizes = st.tuples(_SMALL, _SIDES | st.sampled_from([4097, 70_001]), _SMALL)
        kinds.append(st.builds(CodeProduct, st.sampled_from(products), sizes, st.booleans(), _SEEDS))
    if framework.declares(Capability.INT4_PACKING).supported:
        kinds.append(st.builds(Packing, _SIDES, _SIDES, st.sampled_from([0, 1]), _SEEDS))
    return kinds or [st.builds(QuantizerCall, st.just(QUANTIZERS[0]), MATRICES)]


def _spoilt(names: Collection[str]) -> SearchStrategy[CodedCall]:
    """Quantizers of matrices with a value that is not finite, first, last or between."""
    places = st.sampled_from([0.0, 0.3, 0.6, 0.9999])
    values = st.sampled_from([np.nan, np.inf, -np.inf])
    return st.builds(SpoiltCall, st.sampled_from(sorted(names)), MATRICES, values, places, places)


def _fake(names: Collection[str]) -> SearchStrategy[CodedCall]:
    """Fake quantizers, of values of which some are beyond the range or none is."""
    beyond = st.sampled_from([0, 0, 3, 300])
    return st.builds(FakeCall, st.sampled_from(sorted(names)), _SIDES, _SIDES, st.booleans(), beyond, _SEEDS)
