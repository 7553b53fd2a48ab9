"""Quantizers: scales, codes and what comes back, by the rule that each declares."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.judging.kit import Bound, Subject, Verdict, clause, need
from conformance.judging.laws import explore
from conformance.oracle import quantizing as expected
from fixtures.arrays import Array
from frameworks.contract import Capability, Quantized, QuantRule

NAMES = ("int8-tensor", "int8-row", "int8-column", "uint8-tensor", "int4-group")
each_quantizer = pytest.mark.parametrize("name", NAMES)
SIDE = 48
"""Rows and columns of a square matrix; groups of 32 do not divide it."""


def rule_of(subject: Subject, name: str) -> QuantRule:
    """The rule of a quantizer that the framework declares; leaves the test if it declares none."""
    need(subject, Capability(f"quantization.{name}"))
    return subject.framework.quantizers().rules()[name]


def unlike(seed: int = 0) -> Array:
    """A square matrix of normal values whose rows and columns have magnitudes of their own."""
    normal = np.random.default_rng(seed).standard_normal((SIDE, SIDE))
    rows, columns = 2.0 ** -(np.arange(SIDE) % 7), 2.0 ** -(np.arange(SIDE) % 5)
    return np.asarray(normal * rows[:, None] * columns, np.float32)


def full(quantized: Quantized) -> tuple[Array, Array]:
    """Scale and zero point of each value, float64."""
    shape = quantized.codes.shape
    scale = np.broadcast_to(quantized.scale.astype(np.float64), shape)
    return scale, np.broadcast_to(quantized.zero_point.astype(np.float64), shape)


def comes_back(verdict: Verdict, values: Array, quantized: Quantized, what: str) -> None:
    """All of it is finite, within the bound, and zero is zero."""
    scale, _ = full(quantized)
    verdict.finite({"scale": scale, "values": quantized.values}, what)
    excess = expected.round_trip_excess(values, quantized.values, scale)
    derivation = {"method": "s/2 * (1 + 4u * (|x|/s + 1)), in units of itself", "u": expected.U}
    verdict.within(excess, Bound(1.0, derivation), f"error of {what}", "round-trip")
    verdict.equal(
        int(np.count_nonzero(quantized.values[values == 0.0])), 0, f"zeros of {what} that moved", "zero-moved"
    )


@clause("quantization.rules")
def test_the_rules_of_quantizers(subject: Subject, verdict: Verdict) -> None:
    quantizers = subject.framework.quantizers()
    verdict.observe("rules", {name: asdict(rule) for name, rule in quantizers.rules().items()})
    verdict.observe("fake rules", {name: asdict(rule) for name, rule in quantizers.fake_rules().items()})


@clause("quantization.range-follows-data")
@each_quantizer
@pytest.mark.parametrize("signs", ["both", "positive", "negative"])
def test_scale_and_zero_point_follow_the_range(subject: Subject, verdict: Verdict, name: str, signs: str) -> None:
    rule = rule_of(subject, name)
    values = unlike()
    if signs != "both":
        values = (np.abs(values) + 0.25) * np.float32(1 if signs == "positive" else -1)
    scale, zero = full(subject.framework.quantizers().quantize(name, values))
    wanted = expected.scale_of(values, rule)
    derivation = {"method": "four roundings of float32", "u": expected.U}
    verdict.within(float((np.abs(scale - wanted) / wanted).max()), Bound(4 * expected.U, derivation), "scale", "scale")
    verdict.holds(bool((zero == np.rint(zero)).all()), "zero points are integers", signature="zero-point")
    inside = bool((zero >= rule.low).all() and (zero <= rule.high).all())
    verdict.holds(inside, "zero points are among the codes", signature="zero-point")
    gap = expected.zero_point_gap(values, scale, zero, rule)
    half = Bound(0.5 * (1 + expected.NEAR_A_TIE), {"method": "half a code, from low - min / scale"})
    verdict.within(gap, half, "zero point", "zero-point")


@clause("quantization.codes-as-declared")
@each_quantizer
def test_codes_are_those_of_the_rule(subject: Subject, verdict: Verdict, name: str) -> None:
    rule = rule_of(subject, name)
    rng = np.random.default_rng(1)
    values = rng.standard_normal((500, 500)).astype(np.float32) * np.float32(0.37)
    values[0] += 0.11
    quantized = subject.framework.quantizers().quantize(name, values)
    scale, zero = full(quantized)
    wrong = expected.wrong_codes(values, quantized.codes, scale, zero, rule)
    verdict.equal(wrong, 0, "codes that are not the rule's", "codes")
    reached = (int(quantized.codes.min()), int(quantized.codes.max()))
    verdict.holds(rule.low <= reached[0] and reached[1] <= rule.high, "codes are the declared ones", reached, rule)
    restored = (quantized.codes - zero) * scale
    gap = np.abs(quantized.values - restored) / np.maximum(np.abs(restored), scale)
    derivation = {"method": "two roundings of float32", "u": expected.U}
    verdict.within(float(gap.max()), Bound(2 * expected.U, derivation), "(code - zero point) * scale", "restored")


@clause("quantization.ties")
@each_quantizer
def test_half_way_goes_where_the_rule_says(subject: Subject, verdict: Verdict, name: str) -> None:
    rule = rule_of(subject, name)
    step = 2.0**10
    if rule.symmetric:
        halves = np.arange(-int(rule.divisor), int(rule.divisor) + 1) + 0.5
        halves = halves[np.abs(halves) < int(rule.divisor)]
        ends = [rule.divisor, -rule.divisor]
    else:
        lowest = -(101 * int(rule.divisor) // 255)
        ends = [float(lowest), lowest + rule.divisor]
        halves = np.arange(lowest + 1, lowest + int(rule.divisor) - 1) + 0.5
    row = np.concatenate([ends, halves])
    width = rule.group or len(row)
    rows = [np.concatenate([ends, part]) for part in np.array_split(halves, range(width - 2, len(halves), width - 2))]
    filled = np.concatenate([np.pad(part, (0, width - len(part))) for part in rows])
    values = np.stack([filled, filled]).astype(np.float32) * np.float32(step)
    if rule.axis == 0:
        values = np.ascontiguousarray(values.T)
    quantized = subject.framework.quantizers().quantize(name, values)
    scale, zero = full(quantized)
    verdict.equal(sorted(set(scale.ravel().tolist())), [step], "scale of ranges that are powers of two", "scale")
    wanted = expected.codes(values / step, zero, rule)
    verdict.equal(quantized.codes.astype(np.int64), wanted.astype(np.int64), "codes of half-way values", "ties")


@dataclass(frozen=True)
class Matrix:
    """A drawn matrix: its shape, the exponents of its rows' magnitudes, its signs, and what is in it.

    Attributes:
        rows, columns: the shape.
        exponents: each row's magnitude is 2 to the next of these, over and over.
        sign: 1 or -1 for values of one sign, 0 for both.
        content: "normal", "one" value only, or normal with "zeros".
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
        drawn = np.abs(drawn) * self.sign if self.sign else drawn
        magnitude = 2.0 ** np.resize(self.exponents, self.rows)
        return np.asarray(drawn * magnitude[:, None], np.float32)


MATRICES = st.builds(
    Matrix,
    rows=st.integers(1, 9),
    columns=st.integers(1, 67),
    exponents=st.lists(st.integers(-40, 40), min_size=1, max_size=4).map(tuple),
    sign=st.sampled_from([0, 1, -1]),
    content=st.sampled_from(["normal", "one", "zeros"]),
    seed=st.integers(0, 2**16),
)


@clause("quantization.round-trip")
@each_quantizer
@explore(MATRICES, examples=60)
def test_values_come_back_within_half_a_scale(subject: Subject, verdict: Verdict, case: Matrix, name: str) -> None:
    rule_of(subject, name)
    values = case.values()
    comes_back(verdict, values, subject.framework.quantizers().quantize(name, values), "a drawn matrix")


DEGENERATE = {
    "zeros": (0.0, 0.0, 0.0),
    "negative-zeros": (-0.0, 0.0, -0.0),
    "one-value": (0.7, 0.7, 0.7),
    "one-negative-value": (-0.7, -0.7, -0.7),
    "subnormal": (1e-40, -2e-40, 0.0),
    "tiny": (1e-30, -2e-30, 0.0),
    "outlier": (1e4, 1e-3, -1e-3),
    "far-from-zero": (1000.0, 1000.5, 1001.0),
    "wide": (3e38, -3e38, 1.0),
}


@clause("quantization.degenerate")
@each_quantizer
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_ranges_come_back(subject: Subject, verdict: Verdict, name: str, kind: str) -> None:
    rule = rule_of(subject, name)
    degenerate = np.resize(np.array(DEGENERATE[kind], np.float32), 64)
    ordinary = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    if rule.axis is None:
        values = degenerate.reshape(8, 8)
    else:
        values = ordinary.copy()
        values[1] = degenerate
        values, ordinary = (each if rule.axis == 1 else np.ascontiguousarray(each.T) for each in (values, ordinary))
    quantized = subject.framework.quantizers().quantize(name, values)
    comes_back(verdict, values, quantized, f"a range of {kind}")
    if rule.axis is not None:
        alone = subject.framework.quantizers().quantize(name, ordinary).values
        same = (quantized.values == alone).all(axis=rule.axis)
        verdict.equal(same.tolist(), [place != 1 for place in range(64)], "ranges that kept their bits", "disturbed")


@clause("quantization.non-finite")
@each_quantizer
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_not_finite_does_not_become_a_number(
    subject: Subject, verdict: Verdict, name: str, value: float
) -> None:
    rule = rule_of(subject, name)
    values = unlike()
    place = (1, 3) if rule.axis == 1 else (3, 1)
    before = subject.framework.quantizers().quantize(name, values).values
    values[place] = value
    try:
        after = subject.framework.quantizers().quantize(name, values).values
    except (ValueError, RuntimeError, ArithmeticError) as error:
        verdict.observe("raises", type(error).__name__)
        return
    finite = bool(np.isfinite(after[place]))
    swallowed = finite and (np.isnan(value) or np.sign(after[place]) != np.sign(value))
    verdict.holds(not swallowed, f"{value} is not swallowed", float(after[place]), value, "swallowed")
    if rule.axis is not None:
        others = np.delete(np.arange(SIDE), 1)
        kept = after.take(others, 1 - rule.axis), before.take(others, 1 - rule.axis)
        verdict.equal(kept[0], kept[1], "the other ranges", "disturbed")
