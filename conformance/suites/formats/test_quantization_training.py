"""Building blocks of QAT and integer layers: fake quantization and quantized matmuls."""

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause, need
from conformance.techniques import formats as expected
from conformance.techniques.formats import FAKE_QUANTIZERS, fake_rule_of
from fixtures.arrays import Array
from frameworks.contract import Capability, FakeRule, NumberFormats, Quantizers

each_fake = pytest.mark.parametrize("name", FAKE_QUANTIZERS)
ROWS, COLUMNS = 64, 5


def make_scales(rule: FakeRule, *, exact: bool) -> tuple[Array, Array]:
    """Return scales and zero points of different sizes, one per column if the rule has so; powers of two if `exact`."""
    columns = 1 if rule.axis is None else COLUMNS
    scale = 2.0 ** -np.arange(1.0, 1.0 + columns) if exact else 0.013 * (1.0 + np.arange(columns) / 3)
    zero = np.full(columns, 0 if rule.low < 0 else 101, np.int32)
    return scale.astype(np.float32), zero


def around(rule: FakeRule, scale: Array, zero: Array, steps: Array) -> Array:
    """Return a matrix whose columns have (code + step) · scale for codes of the whole range and far beyond it."""
    ends = np.array([rule.low, rule.low + 1, (rule.low + rule.high) // 2, rule.high - 1, rule.high])
    codes = np.concatenate([(ends[:, None] + steps).ravel(), [rule.low - 500.0, rule.high + 500.0]])
    columns = np.broadcast_to(scale.astype(np.float64), (COLUMNS,)), np.broadcast_to(zero, (COLUMNS,))
    return np.asarray((codes[:, None] - columns[1]) * columns[0], np.float32)


@clause("quantization.fake-values")
@each_fake
@pytest.mark.parametrize("kind", ["halves", "between", "far"])
def test_fake_quantization_gives_nearest_code(subject: Subject, verdict: Verdict, name: str, kind: str) -> None:
    rule = fake_rule_of(subject, name)
    scale, zero = make_scales(rule, exact=kind != "between")
    steps = np.linspace(-1.47, 1.43, 23) if kind == "between" else np.arange(-2.0, 2.25, 0.25)
    values = around(rule, scale, zero, steps)
    if kind == "far":
        values[::2] *= np.float32(2.0**80)
    measured, _ = subject.framework.rule(Quantizers).fake_quantize(name, values, scale, zero)
    wanted, _ = expected.fake(values, scale.astype(np.float64), zero, rule)
    if kind != "between":
        verdict.equal(measured.astype(np.float64) + 0.0, wanted + 0.0, "fake-quantized values", "values")
        return
    gap = np.abs(measured - wanted) / np.maximum(np.abs(wanted), scale)
    derivation = {"method": "two roundings of float32", "u": expected.U}
    verdict.within(float(gap.max()), Bound(2 * expected.U, derivation), "fake-quantized values", "values")


@clause("quantization.straight-through")
@each_fake
def test_gradients_pass_as_declared(subject: Subject, verdict: Verdict, name: str) -> None:
    rule = fake_rule_of(subject, name)
    scale, zero = make_scales(rule, exact=True)
    values = around(rule, scale, zero, np.array([-3.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 3.0]))
    _, measured = subject.framework.rule(Quantizers).fake_quantize(name, values, scale, zero)
    _, wanted = expected.fake(values, scale.astype(np.float64), zero, rule)
    verdict.equal(measured.astype(np.float64), wanted, "gradient of the sum", "gradient")


@clause("quantization.non-finite")
@each_fake
def test_fake_quantization_of_nonfinite_values(subject: Subject, verdict: Verdict, name: str) -> None:
    rule = fake_rule_of(subject, name)
    scale, zero = make_scales(rule, exact=True)
    values = around(rule, scale, zero, np.zeros(1))
    values[:3] = np.array([[np.nan], [np.inf], [-np.inf]])
    measured, _ = subject.framework.rule(Quantizers).fake_quantize(name, values, scale, zero)
    finite = np.isfinite(measured[0])
    verdict.holds(not finite.any() or rule.nan == "clamped", "NaN", measured[0].tolist(), rule.nan, "nan")
    ends = ((rule.high - zero) * scale, (rule.low - zero) * scale)
    for row, (end, value) in enumerate(zip(ends, (np.inf, -np.inf), strict=True), start=1):
        allowed = (measured[row] == end) | (measured[row] == value)
        verdict.holds(bool(allowed.all()), f"{value}", measured[row].tolist(), "the end of the range", "infinity")
    wanted, _ = expected.fake(values[3:], scale.astype(np.float64), zero, rule)
    verdict.equal(measured[3:].astype(np.float64) + 0.0, wanted + 0.0, "the other values", "disturbed")


@clause("quantization.integer-products")
@pytest.mark.parametrize("terms", [1, 2, 31, 4097])
@pytest.mark.parametrize("content", ["lowest", "highest", "both-ends", "drawn"])
def test_integer_matmul_is_exact(subject: Subject, verdict: Verdict, terms: int, content: str) -> None:
    need(subject, Capability.INTEGER_PRODUCTS)
    rng = np.random.default_rng(terms)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, terms), (terms, 5)))
    match content:
        case "lowest":
            a, b = np.full_like(a, -128), np.full_like(b, -128)
        case "highest":
            a, b = np.full_like(a, 127), np.full_like(b, 127)
        case "both-ends":
            a, b = np.full_like(a, -128), np.where(b < 0, np.int8(-128), np.int8(127))
    product = subject.framework.rule(NumberFormats).integer_product(a, b)
    verdict.equal(product.astype(np.int64), a.astype(np.int64) @ b.astype(np.int64), "product of int8", "product")
