"""The law of codes: quantizers, casts and quantized matmuls follow their rules in any order of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from conformance.checks.evidence import same_bits
from conformance.checks.subject import Subject
from conformance.search.checked_case import CheckedInstance, ClauseBroken, breaking
from conformance.search.layouts import Layout, laid_out
from conformance.techniques.formats import expected_codes
from conformance.techniques.formats.checks import check_codes, check_scale, check_zero_point, example
from fixtures.arrays import Array
from frameworks.contract import FakeRule, Framework, Quantized, Quantizers, QuantRule

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
        answers = [self._checked(framework, call) for call in self.calls]
        again = first.answer(framework, self._operands(framework, first))
        with breaking(CLAUSE) as verdict:
            verdict.same_state(again, answers[0], f"{first} after other calls", "calls-depend")

    def _operands(self, framework: Framework, call: CodedCall) -> Operands:
        return tuple(laid_out(each, self.layout) for each in call.operands(framework))

    def _checked(self, framework: Framework, call: CodedCall) -> Answer:
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
        values, given = operands[0], Quantized(**answer)
        with breaking("quantization.range-follows-data") as verdict:
            check_scale(verdict, values, given, rule, "")
            check_zero_point(verdict, values, given, rule)
        with breaking("quantization.codes-as-declared") as verdict:
            check_codes(verdict, values, given, rule)


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
        given = float(after[self._place])
        swallowed = np.isfinite(given) and np.sign(given) != np.sign(self.value)
        others = ~self._range(quantizers.rules()[self.quantizer])
        with breaking("quantization.non-finite") as verdict:
            verdict.holds(not swallowed, f"{self.value} is not swallowed", given, self.value, "swallowed")
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
        wide, ends = (_along(each.astype(np.float64), rule.axis) for each in (scale, zero))
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
        values, (scale, zero) = operands[0], (_along(each, rule.axis) for each in operands[1:])
        restored, slope = expected_codes.fake(values, scale.astype(np.float64), zero, rule)
        allowed = (0.0 if self.exact else FAKE_ROUNDINGS * expected_codes.U) * np.maximum(np.abs(restored), scale)
        measured = answer["values"].astype(np.float64)
        far = ~(np.abs(measured - restored) <= allowed)
        other = answer["gradient"] != slope
        with breaking("quantization.fake-values") as verdict:
            mismatch = example(far, values, measured, restored)
            verdict.holds(not far.any(), "fake-quantized values", mismatch, "all", "values")
        with breaking("quantization.straight-through") as verdict:
            mismatch = example(other, values, answer["gradient"], slope)
            verdict.holds(not other.any(), "gradients", mismatch, "all", "gradient")


def _along(each: Array, axis: Literal[0, 1] | None) -> Array:
    """Scales or zero points, broadcastable to the matrix."""
    return each[:, None] if axis == 1 else each
