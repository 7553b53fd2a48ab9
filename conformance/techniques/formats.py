"""Casts, quantizers, packed codes, quantized matmul: expected values, checks, the law of codes, and the technique."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.checks.evidence import Verdict, same_bits
from conformance.checks.subject import Subject, need_rule
from conformance.oracle.bound import Bound
from conformance.search import LAYOUTS, CheckedInstance, ClauseBroken, Layout, Property, breaking, laid_out
from conformance.techniques import Technique
from fixtures.arrays import CODES, NARROW, Array, NarrowFormat
from frameworks.contract import (
    Capability,
    CastRule,
    FakeRule,
    Framework,
    NumberFormats,
    Quantized,
    Quantizers,
    QuantRule,
)
from frameworks.contract.quantization import Ties
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.formats import ReferenceFormats, ReferenceQuantizers

SOURCES = {name: np.dtype(name) for name in ("float64", "float32", "float16")} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16)
}
"""NumPy dtypes of the formats from which values are cast, by name."""
U = 2.0**-24
"""Unit roundoff of float32."""
NEAR_A_TIE = 2.0**-20
"""Relative distance of a quotient from a half-way value below which float32 may round it to either neighbour."""
SCALE = Bound(4 * U, {"u": U, "roundings": 4.0})
"""Relative error of a scale, which is the reciprocal of a quotient, with two more roundings."""
WITHIN = Bound(1.0, {"bound": 1.0})
"""Bound of a deviation that is measured in units of its own bound."""
CLAUSE = "laws.codes"
"""Clause of a call that changes its operands or depends on other calls."""
FAKE_ROUNDINGS = 3
"""Number of roundings of a dequantized value: its product with the scale, and two more in frameworks that derive the
scale from a largest value."""
Operands = tuple[Array, ...]
Answer = dict[str, Array]
"""Results of a call by name."""
INTEGERS = ("int8", "int8")
"""Formats of the operands of an integer product."""
QUANTIZERS = ("int8-tensor", "int8-row", "int8-column", "uint8-tensor", "int4-group")
FAKE_QUANTIZERS = ("fake-int8-tensor", "fake-int8-column", "fake-uint8-tensor", "fake-int4-tensor")
PRODUCTS = (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"))
"""Formats of the forward pass, and of gradients, which need a wider range."""
_SEEDS = st.integers(0, 2**16)
_SMALL, _LARGE = st.integers(1, 9), st.sampled_from([16, 31, 64, 65, 129, 257, 1025])
_SIDES = _SMALL | _LARGE


def nearest(values: Array, narrow: NarrowFormat) -> Array:
    """Return the nearest value of the format, float64, half-way to the even code; infinite beyond the largest value.

    The sign of zero is kept, unless the format has only one zero.
    """
    wide = np.asarray(values).astype(np.float64)
    steps = narrow.positive
    steps = np.append(steps, 2 * steps[-1] - steps[-2])
    index = np.searchsorted(steps, np.abs(wide))
    high = steps[np.minimum(index, len(steps) - 1)]
    low = steps[np.maximum(np.minimum(index, len(steps) - 1) - 1, 0)]
    middle = (low + high) / 2
    even = np.where(index % 2 == 1, low, high)
    magnitude = np.where(np.abs(wide) == middle, even, np.where(np.abs(wide) < middle, low, high))
    magnitude = np.where(magnitude > narrow.largest, np.inf, magnitude)
    magnitude = np.where(np.abs(wide) > steps[-1], np.inf, magnitude)
    signed = np.copysign(magnitude, wide)
    return np.where(magnitude == 0.0, 0.0, signed) if narrow.specials == "fnuz" else signed


def cast_by_rule(values: Array, narrow: NarrowFormat, rule: CastRule) -> Array:
    """Return the result of a cast, float64: the nearest value, or the rule's result beyond the largest value."""
    wide = np.asarray(values).astype(np.float64)
    becomes = {"saturate": narrow.largest, "nan": np.nan, "inf": np.inf}
    beyond = np.where(np.isinf(wide), becomes[rule.infinity], becomes[rule.overflow])
    near = nearest(wide, narrow)
    return np.asarray(np.where(np.isnan(wide), np.nan, np.where(np.isfinite(near), near, np.copysign(beyond, wide))))


def find_differences(measured: Array, expected: Array) -> Array:
    """Return where two arrays differ; NaN equals NaN, and zeros have signs."""
    same = (measured == expected) & (np.signbit(measured) == np.signbit(expected))
    return np.asarray(~(same | (np.isnan(measured) & np.isnan(expected))))


def hard_values(narrow: NarrowFormat, source: str) -> Array:
    """Return hard-to-cast values within the format's range, in the source format, of both signs.

    These are every value of the format, the middle of each and the next, both neighbours of that middle in the source
    format, and values of all magnitudes in between, drawn from one seed.
    """
    dtype = SOURCES[source]
    steps = narrow.positive
    middles = (steps[:-1] + steps[1:]) / 2
    smallest = np.log2(steps[steps > 0][0]) - 2
    drawn = np.exp2(np.random.default_rng(0).uniform(smallest, np.log2(narrow.largest), 100_000))
    with np.errstate(under="ignore", over="ignore"):
        exact = middles[middles.astype(dtype).astype(np.float64) == middles].astype(dtype)
        beside = [np.nextafter(exact, np.array(towards, dtype)) for towards in (0.0, np.inf)]
        every = np.concatenate([steps.astype(dtype), exact, *beside, drawn.astype(dtype)])
    wide = every.astype(np.float64)
    every = every[np.isfinite(wide) & (wide <= narrow.largest)]
    return np.concatenate([every, -every])


def beyond_values(narrow: NarrowFormat) -> Array:
    """Return finite float32 values of both signs that round beyond the format's largest value, in rising magnitude."""
    steps = narrow.positive
    following = 2 * steps[-1] - steps[-2]
    middle = (narrow.largest + following) / 2
    near = np.concatenate(
        [[np.nextafter(np.float32(middle), np.float32(np.inf))], np.linspace(middle, following, 17)[1:]]
    )
    sweep = np.linspace(middle, 4 * narrow.largest, 65)[1:]
    every = np.concatenate([near, sweep, 2.0 ** np.arange(np.ceil(np.log2(narrow.largest)) + 2, 128)])
    every = np.unique(every).astype(np.float32)
    every = every[np.isfinite(every)]
    return np.concatenate([every, -every])


def rule_of(subject: Subject, name: str) -> QuantRule:
    """Return the declared rule of a quantizer; end the test if there is none."""
    return need_rule(subject, Capability(f"quantization.{name}"), Quantizers).rules()[name]


def fake_rule_of(subject: Subject, name: str) -> FakeRule:
    """Return the declared rule of a fake quantizer; end the test if there is none."""
    return need_rule(subject, Capability(f"quantization.{name}"), Quantizers).fake_rules()[name]


def round_quotient(quotient: Array, ties: Ties) -> Array:
    """Return the nearest integer, float64; the rule decides half-way values."""
    match ties:
        case "even":
            return np.rint(quotient)
        case "up":
            return np.floor(quotient + 0.5)
        case "away":
            return np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)


def ranges(values: Array, rule: QuantRule) -> tuple[Array, Array]:
    """Return the lowest and the highest value of the range of each value, float64, of the values' shape."""
    lowest, highest = (np.empty(values.shape) for _ in range(2))
    for part in _parts(values.shape, rule):
        lowest[part], highest[part] = values[part].min(), values[part].max()
    return lowest, highest


def _parts(shape: tuple[int, ...], rule: QuantRule) -> list[tuple[slice, slice]]:
    """Return the slices of a matrix that have a range of their own."""
    whole = slice(None)
    if rule.axis is None:
        return [(whole, whole)]
    length = shape[rule.axis]
    size = rule.group or length
    along_axis = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    across_axis = [slice(index, index + 1) for index in range(shape[1 - rule.axis])]
    return [(a, b) if rule.axis == 0 else (b, a) for a in along_axis for b in across_axis]


def scale_of(values: Array, rule: QuantRule) -> Array:
    """Return the scale that the rule gives the range of each value, float64."""
    lowest, highest = ranges(values.astype(np.float64), rule)
    if rule.symmetric:
        width = np.maximum(np.abs(lowest), np.abs(highest))
    else:
        width = np.maximum(highest, 0.0) - np.minimum(lowest, 0.0)
    scale = np.maximum((width + rule.epsilon) / rule.divisor, rule.smallest_scale)
    return np.where(scale < rule.unit_below, 1.0, scale)


def zero_point_gap(values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> float:
    """Return the largest distance of a zero point from low − min / scale, clipped to the range of codes."""
    lowest, _ = ranges(values.astype(np.float64), rule)
    exact = np.clip(rule.low - np.minimum(lowest, 0.0) / scale, rule.low, rule.high)
    return float(np.abs(zero_point - (np.zeros_like(exact) if rule.symmetric else exact)).max())


def codes(quotient: Array, zero_point: Array, rule: QuantRule) -> Array:
    """Return the codes of values, float64, given the values' quotients by the scale."""
    if rule.rounds == "sum":
        unclipped = round_quotient(quotient + zero_point, rule.ties)
    else:
        unclipped = round_quotient(quotient, rule.ties) + zero_point
    return np.asarray(np.clip(unclipped, rule.low, rule.high))


def wrong_codes(values: Array, measured: Array, scale: Array, zero_point: Array, rule: QuantRule) -> int:
    """Return the number of codes that are neither the rule's nor, for a quotient almost half-way, an adjacent one.

    If the rule rounds the sum with the zero point, float32 rounds that sum first. A scale of 0, which some frameworks
    report for a range of zeros, allows only the code of zero.
    """
    wide = values.astype(np.float64)
    quotient = np.divide(wide, scale, out=np.where(wide == 0.0, 0.0, np.inf), where=scale != 0.0)
    expected = codes(quotient, zero_point, rule)
    to_a_half = np.abs(quotient - np.floor(quotient) - 0.5)
    summed = U * np.abs(quotient + zero_point) if rule.rounds == "sum" else 0.0
    allowed = np.where(to_a_half <= NEAR_A_TIE * np.abs(quotient) + summed, 1, 0)
    return int(np.sum(np.abs(measured - expected) > allowed))


def round_trip_excess(values: Array, restored: Array, scale: Array) -> float:
    """Return the largest error in units of s/2·(1 + 4u·(|x|/s + 1)); it is at most 1 if each range holds its values.

    A scale of 0, which some frameworks report for a range of zeros, allows no error.
    """
    wide = values.astype(np.float64)
    error = np.abs(wide - restored.astype(np.float64))
    allowed = scale / 2 * (1 + 4 * U) + 2 * U * np.abs(wide)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0.0, 0.0, error / allowed).max())


def fake(values: Array, scale: Array, zero_point: Array, rule: FakeRule) -> tuple[Array, Array]:
    """Return the fake-quantized values and their gradient, float64; scale and zero point broadcast."""
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        code = round_quotient(wide / scale, rule.ties) + zero_point
        restored = (np.clip(code, rule.low, rule.high) - zero_point) * scale
        match rule.gradient:
            case "codes":
                inside = (code >= rule.low) & (code <= rule.high)
            case "range":
                inside = (wide >= (rule.low - zero_point) * scale) & (wide <= (rule.high - zero_point) * scale)
            case "everywhere":
                inside = np.ones(wide.shape, bool)
    return restored, inside.astype(np.float64)


def example(where: Array, values: Array, measured: Array, expected: Array) -> str:
    """Return the first difference as `got X, want Y for VALUE (N of M elements differ)`, "all" if there is none."""
    if not where.any():
        return "all"
    position = tuple(int(index[0]) for index in np.nonzero(where))
    value, got, wanted = (float(array[position]) for array in (values, measured, expected))
    return f"got {got!r}, want {wanted!r} for {value!r} ({int(where.sum())} of {where.size} elements differ)"


def broadcast(quantized: Quantized) -> tuple[Array, Array]:
    """Return scale and zero point of each value, float64."""
    scale, zero = (np.asarray(value, np.float64) for value in (quantized.scale, quantized.zero_point))
    return np.broadcast_to(scale, quantized.codes.shape), np.broadcast_to(zero, quantized.codes.shape)


def check_scale(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule, what: str) -> None:
    """Check that each scale is the rule's for the range."""
    scale, _ = broadcast(quantized)
    wanted = scale_of(values, rule)
    derivation = {"method": "four roundings of float32", "u": U}
    with np.errstate(invalid="ignore", divide="ignore"):
        error = float(np.where(scale == wanted, 0.0, np.abs(scale - wanted) / wanted).max())
    verdict.within(error, Bound(4 * U, derivation), f"scale{what}", "scale")


def check_zero_point(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule) -> None:
    """Check that each zero point is an integer within the range of codes, and the nearest one to the range's start."""
    scale, zero = broadcast(quantized)
    verdict.holds(bool((zero == np.rint(zero)).all()), "zero points are integers", signature="zero-point")
    inside = bool((zero >= rule.low).all() and (zero <= rule.high).all())
    verdict.holds(inside, "zero points are between the lowest and highest code", signature="zero-point")
    gap = zero_point_gap(values, scale, zero, rule)
    half = Bound(0.5 * (1 + NEAR_A_TIE), {"method": "half a code, from low - min / scale"})
    verdict.within(gap, half, "zero point", "zero-point")


def check_codes(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule, what: str = "") -> None:
    """Check that each code is the rule's for the reported scale, and dequantizes to its product with the scale."""
    scale, zero = broadcast(quantized)
    wrong = wrong_codes(values, quantized.codes, scale, zero, rule)
    verdict.equal(wrong, 0, f"codes{what} that are not the rule's", "codes")
    restored = (quantized.codes - zero) * scale
    gap = np.abs(quantized.values - restored)
    gap = np.divide(gap, np.maximum(np.abs(restored), scale), out=gap, where=gap != 0.0)
    derivation = {"method": "two roundings of float32", "u": U}
    verdict.within(float(gap.max()), Bound(2 * U, derivation), f"(code - zero point) * scale{what}", "restored")


def check_round_trip(verdict: Verdict, values: Array, quantized: Quantized, what: str) -> None:
    """Check that dequantized values are finite and within the bound, and that zeros stay zero."""
    scale, _ = broadcast(quantized)
    verdict.finite({"scale": scale, "values": quantized.values}, what)
    excess = round_trip_excess(values, quantized.values, scale)
    derivation = {"method": "s/2 * (1 + 4u * (|x|/s + 1)), in units of itself", "u": U}
    verdict.within(excess, Bound(1.0, derivation), f"error of {what}", "round-trip")
    moved = int(np.count_nonzero(quantized.values[values == 0.0]))
    verdict.equal(moved, 0, f"zeros of {what} that moved", "zero-moved")


def values_up_to(shape: tuple[int, ...], largest: float, seed: int | Sequence[int]) -> Array:
    """Return values of both signs and many magnitudes, float32; the largest is `largest`, at a random place."""
    rng = np.random.default_rng(seed)
    values = np.exp2(rng.uniform(-9, 0, shape)) * rng.choice([-1.0, 1.0], shape)
    values.flat[rng.integers(values.size)] = rng.choice([-1.0, 1.0])
    return np.asarray(values / np.abs(values).max() * largest, np.float32)


def stored_scales(maxima: Sequence[float], narrow: NarrowFormat, history: int) -> list[float]:
    """Return the stored scale after each step, from every step's amax.

    It follows the previous steps, at most `history` of them. It stays if their amax is 0 or not finite.
    """
    scales, scale = [], 1.0
    for step in range(len(maxima)):
        most = float(np.max(maxima[max(0, step - history) : step], initial=0.0))
        scale = most / narrow.largest if np.isfinite(most) and most > 0 else scale
        scales.append(scale)
    return scales


def round_to_codes(values: Array, scale: float, narrow: NarrowFormat) -> Array:
    """Return the values, float64, clipped to the format's range at this scale and rounded to its codes."""
    wide = np.clip(values.astype(np.float64) / scale, -narrow.largest, narrow.largest)
    return nearest(wide, narrow) * scale


def product_and_bound(left: Array, right: Array) -> tuple[Array, Array]:
    """Return the exact product of two float64 matrices, and the bound for one with float32 sums.

    The bound is (k + 1)·u·Σ|a||b| for k terms, with one more rounding for each of two scales.
    """
    terms = left.shape[1] + 3
    return left @ right, terms * U * (np.abs(left) @ np.abs(right))


def worst_share(measured: Array, expected: Array, bound: Array) -> float:
    """Return the largest deviation in units of its bound, 0 for empty arrays; NaN if a value is not finite.

    Where the bound is 0, a value must be exact.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.abs(measured - expected)
        return float(np.max(np.where(gap == 0, 0.0, gap / bound), initial=0.0))


class CodedCall(Protocol):
    """A call whose result follows from its operands by a declared rule of the framework."""

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""

    def operands(self, framework: Framework) -> Operands:
        """Return its operands, newly allocated."""

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        """Return the framework's results."""

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        """Check the answer against the rule.

        Raises:
            ClauseBroken: the answer differs.
        """


@dataclass(frozen=True)
class CodedCalls(CheckedInstance):
    """Consecutive calls; the first one is repeated at the end.

    Attributes:
        layout: memory layout of the operands.
    """

    calls: tuple[CodedCall, ...]
    layout: Layout = "rows"

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
        return frozenset().union(*(call.words() for call in self.calls))

    def check(self, subject: Subject) -> None:
        """Check each answer, that operands are unchanged, and that the first call, repeated, gives the same answer."""
        framework, first = subject.framework, self.calls[0]
        answers = [self._check_call(framework, call) for call in self.calls]
        repeated = first.answer(framework, self._operands(framework, first))
        with breaking(CLAUSE) as verdict:
            verdict.same_state(repeated, answers[0], f"{first} after other calls", "calls-depend")

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
    """A drawn matrix: its shape, the exponents of its rows' magnitudes, its sign, and its content.

    Attributes:
        rows, columns: the shape.
        exponents: each row's magnitude is 2 to one of these; they are repeated in turn.
        sign: 1 or -1 for values of one sign, 0 for both.
        content: "normal", "one" value only, normal with "zeros", or "far" from zero in all rows but the first.
        seed: from which values are drawn.
    """

    rows: int
    columns: int
    exponents: tuple[int, ...]
    sign: int
    content: str
    seed: int

    def values(self) -> Array:
        """Return the matrix, float32."""
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
        row, column: place of this value, as shares of the matrix in [0, 1).
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
        """Return the dequantized values; nothing if the framework refuses the input."""
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
        """Return where values share a range with the non-finite value."""
        numbers = np.zeros((self.matrix.rows, self.matrix.columns), int)
        for number, part in enumerate(_parts(numbers.shape, rule)):
            numbers[part] = number
        return np.asarray(numbers == numbers[self._place])


@dataclass(frozen=True)
class FakeCall:
    """A fake-quantized matrix, and its gradient.

    Attributes:
        rows, columns: the shape.
        exact: whether scales are powers of two, and some values lie half-way between codes.
        beyond: by how many codes values may exceed both ends of the range.
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
        """Return values, scales and zero points."""
        rule, rng = framework.rule(Quantizers).fake_rules()[self.quantizer], np.random.default_rng([self.seed, 31])
        count = 1 if rule.axis is None else (self.rows, self.columns)[1 - rule.axis]
        scale = 2.0 ** rng.integers(-9, 5, count) * (1.0 if self.exact else rng.uniform(0.6, 0.9, count))
        zero = (np.zeros(count) if rule.low < 0 else rng.integers(rule.low, rule.high + 1, count)).astype(np.int32)
        scale = scale.astype(np.float32)
        shape = self.rows, self.columns
        codes = rng.integers(rule.low - self.beyond, rule.high + self.beyond + 1, shape)
        steps = rng.choice([-0.5, -0.25, 0.0, 0.25, 0.5], shape) if self.exact else rng.uniform(-0.4, 0.4, shape)
        wide, ends = (_along(array.astype(np.float64), rule.axis) for array in (scale, zero))
        return ((codes + steps - ends) * wide).astype(np.float32), scale, zero

    def answer(self, framework: Framework, operands: Operands) -> Answer:
        value, gradient = framework.rule(Quantizers).fake_quantize(self.quantizer, *operands)
        return {"values": value, "gradient": gradient}

    def check(self, framework: Framework, operands: Operands, answer: Answer) -> None:
        rule = framework.rule(Quantizers).fake_rules()[self.quantizer]
        values, (scale, zero) = operands[0], (_along(array, rule.axis) for array in operands[1:])
        restored, slope = fake(values, scale.astype(np.float64), zero, rule)
        allowed = (0.0 if self.exact else FAKE_ROUNDINGS * U) * np.maximum(np.abs(restored), scale)
        measured = answer["values"].astype(np.float64)
        wrong = ~(np.abs(measured - restored) <= allowed)
        other = answer["gradient"] != slope
        with breaking("quantization.fake-values") as verdict:
            mismatch = example(wrong, values, measured, restored)
            verdict.holds(not wrong.any(), "fake-quantized values", mismatch, "all", "values")
        with breaking("quantization.straight-through") as verdict:
            mismatch = example(other, values, answer["gradient"], slope)
            verdict.holds(not other.any(), "gradients", mismatch, "all", "gradient")


def _along(values: Array, axis: Literal[0, 1] | None) -> Array:
    """Return scales or zero points, broadcastable to the matrix."""
    return values[:, None] if axis == 1 else values


@dataclass(frozen=True)
class CastCall:
    """Values that are cast to an 8-bit format.

    Attributes:
        source: format of the values.
        shape: shape of the values.
        special: number of values that are beyond the largest value, infinite or NaN.
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
        expected = cast_by_rule(wide, narrow, rule)
        ordinary = np.isfinite(nearest(wide, narrow))
        for clause, mask in (("formats.round-to-nearest", ordinary), ("formats.overflow-as-declared", ~ordinary)):
            wrong = find_differences(measured, expected) & mask
            with breaking(clause) as verdict:
                mismatch = example(wrong, wide, measured, expected)
                verdict.holds(not wrong.any(), f"casts to {self.format}", mismatch, "all", "casts")
        wrong = find_differences(answer["decoded"].astype(np.float64), measured)
        with breaking("formats.decode") as verdict:
            mismatch = example(wrong, codes, answer["decoded"], measured)
            verdict.holds(not wrong.any(), f"values of codes of {self.format}", mismatch, "all", "decoded")


def _near_one(places: Array, steps: Array) -> Array:
    """Return the places, mapped to values that are normal in float16."""
    one = int(np.searchsorted(steps, 1.0))
    return one - 14 + places % 28


@dataclass(frozen=True)
class CodeProduct:
    """A product of two matrices of codes, (n, k) and (k, m).

    Attributes:
        formats: formats of the operands, "int8" or an 8-bit float format.
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
            verdict.within(worst_share(product, expected, bound), WITHIN, "products", "value")


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


def matrices(
    rows: SearchStrategy[int], columns: SearchStrategy[int], contents: Collection[str]
) -> SearchStrategy[Matrix]:
    """Return a strategy for matrices of these sizes, whose rows differ in magnitude."""
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
    """Return a strategy for one to three calls of any kind that a framework declares."""
    calls = st.lists(st.one_of(_kinds(framework)), min_size=1, max_size=3).map(tuple)
    return st.builds(CodedCalls, calls, st.sampled_from(LAYOUTS))


def _kinds(framework: Framework) -> list[SearchStrategy[CodedCall]]:
    """Return strategies for calls by kind; if nothing is declared, one for a call that is refused."""

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
    """Return a strategy for quantized matrices with one non-finite value, anywhere in the matrix."""
    places = st.sampled_from([0.0, 0.3, 0.6, 0.9999])
    values = st.sampled_from([np.nan, np.inf, -np.inf])
    return st.builds(SpoiltCall, st.sampled_from(sorted(names)), MATRICES, values, places, places)


def _fake(names: Collection[str]) -> SearchStrategy[CodedCall]:
    """Return a strategy for fake-quantized matrices, with or without values beyond the range."""
    beyond = st.sampled_from([0, 0, 3, 300])
    return st.builds(FakeCall, st.sampled_from(sorted(names)), _SIDES, _SIDES, st.booleans(), beyond, _SEEDS)


FORMATS = Technique(
    rows={
        **{name: f"casts to `{name}`" for name in NARROW},
        "integer-products": "`int8` matmul in `int32`",
        "float8-products": "`float8` matmul in `float32`",
        "int4-packing": "packed int4, two to a byte",
        "int8-tensor": "int8, one range",
        "int8-row": "int8, a range for each row",
        "int8-column": "int8, a range for each column",
        "uint8-tensor": "uint8, with a zero point",
        "int4-group": "int4, a range for each group",
        "fake-int8-tensor": "fake int8, one scale",
        "fake-int8-column": "fake int8, a scale for each column",
        "fake-uint8-tensor": "fake uint8, with a zero point",
        "fake-int4-tensor": "fake int4, one scale",
    },
    clauses={
        "quantization.integer-products": "integer-products",
        "formats.products": "float8-products",
        "formats.packing": "int4-packing",
    },
    properties={"laws.codes": Property(number=10, draw=draw_calls, parts=2, share=1.0)},
    breaks=(
        "formats.decode",
        "formats.overflow-as-declared",
        "formats.packing",
        "formats.products",
        "formats.round-to-nearest",
        "quantization.codes-as-declared",
        "quantization.fake-values",
        "quantization.integer-products",
        "quantization.non-finite",
        "quantization.range-follows-data",
        "quantization.straight-through",
    ),
    features=(
        *(f"quantizer={name}" for name in (*QUANTIZERS, *FAKE_QUANTIZERS)),
        "quantizer=spoilt",
        "fake=beyond",
        *(f"cast={name}" for name in NARROW),
        *(f"source={name}" for name in SOURCES),
        "cast=beyond",
        *(f"product={'-by-'.join(formats)}" for formats in (INTEGERS, *PRODUCTS)),
        "packed",
    ),
    places={
        ReferenceFormats: ("formats_class", ReferenceFramework),
        ReferenceQuantizers: ("quantizers_class", ReferenceFramework),
    },
)
