"""Mixed precision: the precision of single operations, judged by format and values of their outputs."""

import numpy as np
import pytest

from conformance import declarations
from conformance.checks.api import Subject, Verdict, clause, need
from fixtures.arrays import FORMATS, Array
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, Precision
from frameworks.contract import Capability, OpResult, Unsupported
from frameworks.operations import CATALOGUE

HALVES = [FLOAT16, BFLOAT16]
each_half = pytest.mark.parametrize("precision", HALVES, ids=lambda p: p.format)
REDUCTIONS = ["sum", "mean", "variance", "norm"]
NORMS = ["layer_norm", "batch_norm", "instance_norm", "rms_norm"]


def under(subject: Subject, precision: Precision, op: str, *arrays: Array) -> OpResult:
    """Run one operation inside the framework's precision scope."""
    need(subject, Capability.of(precision))
    with subject.framework.autocast(precision):
        return subject.framework.run_op(op, *arrays)


def low(array: Array, precision: Precision) -> Array:
    """Return the array in the low format of `precision`."""
    return array.astype(FORMATS[precision.format].dtype)


@clause("autocast.matmul-is-low")
@each_half
@pytest.mark.parametrize("op", ["matmul", "batched_matmul", "einsum", "linear", "conv2d", "attention"])
def test_matmul_returns_low_precision(subject: Subject, verdict: Verdict, op: str, precision: Precision) -> None:
    operands = list(CATALOGUE[op]())
    result = under(subject, precision, op, *operands)
    if op == "linear" and result.dtype == "float32":
        verdict.observe("linear", "a low product and a float32 bias")
        operands[-1] = np.zeros_like(operands[-1])
        product = under(subject, precision, op, *operands).value
        verdict.equal(low(product, precision).astype(np.float32), product, f"{op} without its bias", "not-low")
        return
    verdict.equal(result.dtype, precision.format, f"format of {op}", "not-low")


@clause("autocast.matmul-is-low")
@each_half
@pytest.mark.parametrize("side", ["left", "right"])
def test_matmul_matches_low_precision_operands(
    subject: Subject, verdict: Verdict, side: str, precision: Precision
) -> None:
    ulp = 2.0 ** (1 - FORMATS[precision.format].bits)
    beyond = 1.0 + ulp * np.array([0.25, 0.5, 0.75, 1.0], np.float32)
    x, w = np.stack([beyond, np.ones(4)], 1).astype(np.float32), np.array([[1.0], [-1.0]], np.float32)
    value = under(subject, precision, "matmul", *((x, w) if side == "left" else (w.T, x.T))).value.astype(np.float64)
    verdict.equal(
        (value.ravel() / ulp).tolist(),
        [0.0, 0.0, 1.0, 1.0],
        "(1+e)·1 − 1·1 in units of the last place, for e of 1/4, 1/2, 3/4 and 1: the operand is rounded to nearest",
        "operands-not-rounded",
    )


@clause("autocast.matmul-is-low")
@each_half
def test_matmul_accumulates_in_float32(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    ones = np.ones((1, 4096), np.float32)
    value = under(subject, precision, "matmul", ones, ones.T).value.astype(np.float64)
    verdict.equal(value.item(), 4096.0, "sum of 4,096 ones in a product", "accumulated-low")


@clause("autocast.sum-is-wide")
@each_half
@pytest.mark.parametrize("op", REDUCTIONS)
def test_low_precision_reductions_do_not_overflow(
    subject: Subject, verdict: Verdict, op: str, precision: Precision
) -> None:
    values = np.ones(70_000) if op in ("sum", "mean") else np.resize([300.0, -300.0], 4_096)
    exact = {"sum": 70_000.0, "mean": 1.0, "variance": 90_000.0, "norm": 300.0 * 64.0}[op]
    value = under(subject, precision, op, low(values, precision)).value.astype(np.float64).item()
    verdict.holds(np.isfinite(value), f"{op} is finite, as in float32", value, exact, "overflow")
    relative = abs(value - exact) / exact
    verdict.holds(
        relative <= FORMATS[precision.format].unit_roundoff, f"{op} to one rounding", value, exact, "inaccurate"
    )


@clause("autocast.softmax-is-wide")
@pytest.mark.parametrize("precision", [*HALVES, FLOAT32], ids=lambda p: p.format)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_softmax_matches_float32(subject: Subject, verdict: Verdict, op: str, precision: Precision) -> None:
    logits = low(np.linspace(-60.0, 60.0, 97).reshape(1, 97), BFLOAT16 if precision is FLOAT32 else precision)
    if precision is FLOAT32:
        result = subject.framework.run_op(op, logits.astype(np.float32))
    else:
        result = under(subject, precision, op, logits)
    exact = _softmax(op, logits.astype(np.float64))
    rounded = exact.astype(FORMATS[result.dtype].dtype).astype(np.float64)
    worst = _units_apart(result.value.astype(np.float64), rounded, result.dtype)
    verdict.observe(f"{op}-format", result.dtype)
    slack = 2.0**6 if result.dtype == "float32" else 1.0
    verdict.holds(
        worst <= slack,
        f"{op} of logits in ±60, in units of the last place of {result.dtype}",
        worst,
        f"<= {slack}",
        "inaccurate",
    )


def _softmax(op: str, logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True)
    if op == "softmax":
        return np.asarray(np.exp(shifted) / total)
    if op == "log_softmax":
        return np.asarray(shifted - np.log(total))
    return np.asarray(np.log(total) + logits.max(-1, keepdims=True))[..., 0]


def _units_apart(measured: Array, exact: Array, name: str) -> float:
    """Return the largest difference in ulps of `exact` in the format; subnormal values may be flushed to zero."""
    form = FORMATS[name]
    actual = measured.reshape(exact.shape)
    _, exponent = np.frexp(np.abs(exact))
    unit = np.ldexp(1.0, np.maximum(exponent - 1, form.smallest_exponent) - form.bits + 1)
    flushed = (actual == 0.0) & (np.abs(exact) < np.ldexp(1.0, form.smallest_exponent))
    return float(np.max(np.where(flushed, 0.0, np.abs(actual - exact) / unit)))


@clause("autocast.loss-is-wide")
@each_half
def test_small_cross_entropy_with_large_logits(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    logits = low(np.array([[20.0, 10.8125, -30.0]]), precision)
    result = under(subject, precision, "cross_entropy", logits, np.zeros(1, np.int64))
    wide = logits.astype(np.float64)
    exact = float(np.log1p(np.exp(wide[0, 1:] - wide[0, 0]).sum()))
    verdict.equal(result.dtype, "float32", "format of the loss", "loss-is-low")
    relative = abs(float(result.value.item()) - exact) / exact
    verdict.holds(
        relative < 2.0**-9, "a true loss of about 1e-4, relatively", float(result.value.item()), exact, "inaccurate"
    )


@clause("autocast.loss-is-wide")
@each_half
def test_squared_error_beyond_float16(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    a, b = low(np.full((4, 1), 300.0), precision), low(np.zeros((4, 1)), precision)
    result = under(subject, precision, "squared_error", a, b)
    verdict.equal(float(result.value.item()), 90_000.0, "mean of 300²", "overflow")


@clause("autocast.norm-layers-are-wide")
@pytest.mark.parametrize("op", NORMS)
def test_norm_layers_take_inputs_beyond_float16(subject: Subject, verdict: Verdict, op: str) -> None:
    signs = np.where(np.indices((16, 16)).sum(axis=0) % 2, 1.0, -1.0).astype(np.float32)
    result = under(subject, FLOAT16, op, signs * np.float32(2.0**17))
    verdict.equal(np.rint(result.value.astype(np.float64)), signs.astype(np.float64), f"{op} of ±2^17", "overflow")


@clause("autocast.norm-layers-are-wide")
@each_half
@pytest.mark.parametrize("op", NORMS)
def test_norm_statistics_are_float32(subject: Subject, verdict: Verdict, op: str, precision: Precision) -> None:
    rows = np.resize([-1.0, 1.0], (16, 16)) * (1.0 if op == "rms_norm" else 4.0)
    offset = 300.0 if op == "rms_norm" else 1024.0
    values = low(rows.T + offset if op == "batch_norm" else rows + offset, precision).astype(np.float64)
    axis = 0 if op == "batch_norm" else -1
    mean = 0.0 if op == "rms_norm" else values.mean(axis, keepdims=True)
    square = (values - mean) ** 2
    exact = (values - mean) / np.sqrt(square.mean(axis, keepdims=True) + 1e-5)
    result = under(subject, precision, op, low(values, precision))
    worst = float(np.abs(result.value.astype(np.float64) - exact).max())
    bound = 2 * FORMATS[result.dtype].unit_roundoff * float(np.abs(exact).max()) + 2.0**-12
    verdict.holds(
        worst <= bound, f"{op} of values near {offset:g}, to one rounding", worst, f"<= {bound}", "statistics-low"
    )


@clause("autocast.exp-pow-are-wide")
@each_half
@pytest.mark.parametrize(("op", "value"), [("exp", 12.0), ("pow", 60.0), ("square", 300.0), ("expm1", 12.0)])
def test_pointwise_functions_do_not_overflow(
    subject: Subject, verdict: Verdict, op: str, value: float, precision: Precision
) -> None:
    result = under(subject, precision, op, low(np.full((2, 2), value), precision))
    finite = bool(np.isfinite(result.value.astype(np.float64)).all())
    verdict.holds(finite, f"{op}({value:g}) is finite, as in float32", result.value, "finite", "overflow")


@clause("autocast.promotes-to-widest")
@each_half
@pytest.mark.parametrize("op", ["add", "multiply", "concatenate", "where"])
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_mixed_operands_promote_to_wider_format(
    subject: Subject, verdict: Verdict, op: str, wide: str, precision: Precision
) -> None:
    a, b = CATALOGUE[op]()
    result = under(subject, precision, op, low(a, precision), b.astype(wide))
    verdict.equal(result.dtype, wide, f"format of {op}({precision.format}, {wide})", "narrowed")


@clause("autocast.integers-untouched")
@each_half
def test_integer_ids_above_2048_are_not_cast(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    ids = np.array([2049, 4095, 2047, 65_537], np.int64)
    result = under(subject, precision, "gather_ids", ids)
    verdict.holds(result.dtype.startswith("int"), "format of integer ids", result.dtype, "an integer", "integers-cast")
    verdict.equal(result.value.astype(np.int64), ids, "ids", "integers-cast")
    table = np.arange(4096, dtype=np.float32)[:, None] % 7
    rows = under(subject, precision, "embedding", np.array([2049, 4095], np.int64), table).value
    verdict.equal(
        rows.astype(np.float64).ravel().tolist(), [2049.0 % 7, 4095.0 % 7], "rows that the ids pick", "integers-cast"
    )


@clause("autocast.op-dtypes")
@each_half
def test_observe_format_of_every_operation(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    census: dict[str, str] = {}
    for op, example in CATALOGUE.items():
        inputs = list(example())
        narrow = [low(a, precision) if a.dtype.kind == "f" else a for a in inputs]
        formats = [_format(subject, precision, op, arrays) for arrays in (inputs, narrow)]
        census[op] = " / ".join(formats)
    verdict.observe(f"{precision.format}: float32 in / low in", census)
    ran = sum("raises" not in formats and "refused" not in formats for formats in census.values())
    verdict.holds(ran >= 40, "operations that run", ran, ">= 40 of " + str(len(census)))


def _format(subject: Subject, precision: Precision, op: str, arrays: list[Array]) -> str:
    try:
        return under(subject, precision, op, *arrays).dtype
    except Unsupported as refusal:
        if refusal.capability is not Capability.OPERATIONS:
            raise
        return "refused"
    except Exception as error:
        return f"raises {type(error).__name__}"


@clause("autocast.user-lists")
@each_half
def test_user_operation_lists_are_honoured(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    need(subject, Capability.of(precision), Capability.AUTOCAST_LISTS)
    (logits,), (a, b) = CATALOGUE["softmax"](), CATALOGUE["matmul"]()
    with subject.framework.autocast(precision, low=("softmax",), wide=("matmul",)):
        named_low, named_wide = subject.framework.run_op("softmax", logits), subject.framework.run_op("matmul", a, b)
    verdict.equal(named_low.dtype, precision.format, "format of softmax on the user's low list", "list-ignored")
    verdict.equal(named_wide.dtype, "float32", "format of matmul on the user's wide list", "list-ignored")


@clause("autocast.request-is-honoured-or-refused")
@pytest.mark.parametrize("capability", declarations.REQUESTS, ids=str)
def test_requested_format_is_used_or_refused(subject: Subject, verdict: Verdict, capability: Capability) -> None:
    declarations.compare(subject, verdict, capability)


@clause("autocast.request-is-honoured-or-refused")
@each_half
def test_substituted_format_is_reported(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    need(subject, Capability.LIBRARY_REQUESTS)
    try:
        request = subject.framework.request_format(precision.format)
    except Unsupported:
        raise
    except Exception as refusal:
        verdict.holds(bool(str(refusal)), "a refusal says why", str(refusal), "a message")
        return
    reported = request.warned and request.reported == request.ran
    what = f"{precision.format} was asked for, and runs or is reported not to"
    verdict.holds(request.ran == precision.format or reported, what, request, precision.format, "silently-another")
