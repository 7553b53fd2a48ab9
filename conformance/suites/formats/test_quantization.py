"""Quantizers: scales, codes and dequantized values, by the declared rules."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.checks.api import Subject, Verdict, clause
from conformance.search import explore
from conformance.techniques import formats as expected
from conformance.techniques.formats import rule_of
from fixtures.arrays import Array
from frameworks.contract import Quantizers

each_quantizer = pytest.mark.parametrize("name", expected.QUANTIZERS)
SIDE = 48
"""Rows and columns of a square matrix; groups of 32 do not divide it."""
MATRICES = expected.matrices(st.integers(1, 9), st.integers(1, 67), ("normal", "one", "zeros"))
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


def make_varied_matrix(seed: int = 0) -> Array:
    """Return a square matrix of normal values whose rows and columns differ in magnitude."""
    normal = np.random.default_rng(seed).standard_normal((SIDE, SIDE))
    rows, columns = 2.0 ** -(np.arange(SIDE) % 7), 2.0 ** -(np.arange(SIDE) % 5)
    return np.asarray(normal * rows[:, None] * columns, np.float32)


@clause("quantization.rules")
def test_quantizer_rules(subject: Subject, verdict: Verdict) -> None:
    quantizers = subject.framework.rule(Quantizers)
    verdict.observe("rules", {name: asdict(rule) for name, rule in quantizers.rules().items()})
    verdict.observe("fake rules", {name: asdict(rule) for name, rule in quantizers.fake_rules().items()})


@clause("quantization.range-follows-data")
@each_quantizer
@pytest.mark.parametrize("signs", ["both", "positive", "negative"])
def test_scale_and_zero_point_follow_range(subject: Subject, verdict: Verdict, name: str, signs: str) -> None:
    rule = rule_of(subject, name)
    values = make_varied_matrix()
    if signs != "both":
        values = (np.abs(values) + 0.25) * np.float32(1 if signs == "positive" else -1)
    quantized = subject.framework.rule(Quantizers).quantize(name, values)
    expected.check_scale(verdict, values, quantized, rule, "")
    expected.check_zero_point(verdict, values, quantized, rule)


@clause("quantization.codes-as-declared")
@each_quantizer
def test_codes_match_rule(subject: Subject, verdict: Verdict, name: str) -> None:
    rule = rule_of(subject, name)
    rng = np.random.default_rng(1)
    values = rng.standard_normal((500, 500)).astype(np.float32) * np.float32(0.37)
    values[0] += 0.11
    quantized = subject.framework.rule(Quantizers).quantize(name, values)
    expected.check_codes(verdict, values, quantized, rule)
    reached = (int(quantized.codes.min()), int(quantized.codes.max()))
    verdict.holds(
        rule.low <= reached[0] and reached[1] <= rule.high, "codes are within the declared range", reached, rule
    )


@clause("quantization.ties")
@each_quantizer
def test_ties_round_as_declared(subject: Subject, verdict: Verdict, name: str) -> None:
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
    quantized = subject.framework.rule(Quantizers).quantize(name, values)
    scale, zero = expected.broadcast(quantized)
    verdict.equal(sorted(set(scale.ravel().tolist())), [step], "scale of ranges that are powers of two", "scale")
    wanted = expected.codes(values / step, zero, rule)
    verdict.equal(quantized.codes.astype(np.int64), wanted.astype(np.int64), "codes of half-way values", "ties")


@clause("quantization.round-trip")
@each_quantizer
@explore(MATRICES, examples=60)
def test_round_trip_error_is_at_most_half_a_scale(
    subject: Subject, verdict: Verdict, case: expected.Matrix, name: str
) -> None:
    rule_of(subject, name)
    values = case.values()
    expected.check_round_trip(
        verdict, values, subject.framework.rule(Quantizers).quantize(name, values), "a drawn matrix"
    )


@clause("quantization.degenerate")
@each_quantizer
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_ranges_round_trip(subject: Subject, verdict: Verdict, name: str, kind: str) -> None:
    rule = rule_of(subject, name)
    degenerate = np.resize(np.array(DEGENERATE[kind], np.float32), 64)
    ordinary = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    if rule.axis is None:
        values = degenerate.reshape(8, 8)
    else:
        values = ordinary.copy()
        values[1] = degenerate
        values, ordinary = (array if rule.axis == 1 else np.ascontiguousarray(array.T) for array in (values, ordinary))
    quantized = subject.framework.rule(Quantizers).quantize(name, values)
    expected.check_round_trip(verdict, values, quantized, f"a range of {kind}")
    if rule.axis is not None:
        alone = subject.framework.rule(Quantizers).quantize(name, ordinary).values
        same = (quantized.values == alone).all(axis=rule.axis)
        verdict.equal(same.tolist(), [index != 1 for index in range(64)], "ranges that kept their bits", "disturbed")


@clause("quantization.non-finite")
@each_quantizer
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_nonfinite_values_do_not_become_finite(subject: Subject, verdict: Verdict, name: str, value: float) -> None:
    rule = rule_of(subject, name)
    values = make_varied_matrix()
    position = (1, 3) if rule.axis == 1 else (3, 1)
    before = subject.framework.rule(Quantizers).quantize(name, values).values
    values[position] = value
    try:
        after = subject.framework.rule(Quantizers).quantize(name, values).values
    except (ValueError, RuntimeError, ArithmeticError) as error:
        verdict.observe("raises", type(error).__name__)
        return
    finite = bool(np.isfinite(after[position]))
    swallowed = finite and (np.isnan(value) or np.sign(after[position]) != np.sign(value))
    verdict.holds(not swallowed, f"{value} is not swallowed", float(after[position]), value, "swallowed")
    if rule.axis is not None:
        others = np.delete(np.arange(SIDE), 1)
        rest = after.take(others, 1 - rule.axis), before.take(others, 1 - rule.axis)
        verdict.equal(rest[0], rest[1], "the other ranges", "disturbed")
