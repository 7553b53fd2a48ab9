"""QAT: the expected fake-quantized layers and ranges of inputs, their bounds, and checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need_rule
from conformance.oracle.bound import Bound
from conformance.techniques import Technique, formats
from fixtures.arrays import Array
from fixtures.recipe import Qat, Recipe
from frameworks.contract import Calibrated, Capability, CodeRange, QatRule, QuantRule
from frameworks.reference.quantization.post_training import QatLayers
from frameworks.reference.training.trainer import ReferenceTrainer

_RUNS = ("converts", "averages", "beyond", "predicts", "loads", "freezes", "window", "skips")

QAT = Technique(
    recipes=(Recipe(quantization=Qat()),),
    rows={"aware": "QAT", "convert": "conversion after QAT"},
    clauses={
        "quantization.aware-*": "aware",
        "quantization.ranges-follow": "aware",
        "quantization.observers-hold-still": "aware",
        "quantization.convert-is-faithful": "convert",
    },
    breaks=(
        "quantization.ranges-follow",
        "quantization.observers-hold-still",
        "quantization.convert-is-faithful",
        "quantization.aware-survives-saving",
    ),
    features=tuple(f"aware-run={kind}" for kind in _RUNS),
    places={QatLayers: ("qat_class", ReferenceTrainer)},
)


def rule_of(subject: Subject) -> QatRule:
    """Return the declared rule; end the test if there is none."""
    return need_rule(subject, Capability.QAT, QatRule)


@dataclass(frozen=True)
class FakeQuantized:
    """Fake-quantized values.

    Attributes:
        values: the values, float64.
        passes: 1.0 where the gradient is passed on, otherwise 0.0.
        step: the scale of each value.
        uncertain: where a value is so close to half-way that its code or gradient may differ.
    """

    values: Array
    passes: Array
    step: Array
    uncertain: Array


def fake_quantize(
    values: Array, rule: QuantRule, gradient: str, code_range: CodeRange | None = None, error: Array | float = 0.0
) -> FakeQuantized:
    """Return the fake quantization by the values' own range or a given one; `error` bounds the error of the values."""
    wide = values.astype(np.float64)
    if code_range is None:
        scale, zero = formats.scale_of(values, rule), np.zeros(values.shape)
    else:
        scale, zero = np.full(values.shape, code_range.scale), np.full(values.shape, float(code_range.zero_point))
    quotient = wide / scale
    unclipped = formats.round_quotient(quotient, rule.ties) + zero
    inside = (unclipped >= rule.low) & (unclipped <= rule.high)
    ends = (rule.low - zero, rule.high - zero)
    near = np.abs(quotient - np.floor(quotient) - 0.5) <= formats.NEAR_A_TIE * np.abs(quotient) + error / scale
    if gradient == "everywhere":
        inside = np.ones(values.shape, bool)
    elif gradient == "range":
        inside = (quotient >= ends[0]) & (quotient <= ends[1])
        near |= np.minimum(np.abs(quotient - ends[0]), np.abs(quotient - ends[1])) <= formats.NEAR_A_TIE * np.abs(
            quotient
        )
    return FakeQuantized(
        (np.clip(unclipped, rule.low, rule.high) - zero) * scale, inside.astype(np.float64), scale, near
    )


@dataclass(frozen=True)
class FakeLayer:
    """Output and gradients of a dense layer, each with its bound."""

    outputs: Array
    outputs_bound: Array
    weight_gradient: Array
    weight_bound: Array
    input_gradient: Array
    input_bound: Array


def layer(
    inputs: Array,
    weight: Array,
    bias: Array,
    rule: QatRule,
    ranges: tuple[CodeRange, CodeRange | None],
    passed_back: Array,
) -> FakeLayer:
    """Return a dense layer of float32 inputs (n, k) and weight (k, m), by the ranges of inputs and outputs.

    `passed_back` is the gradient of the layer's output, (n, m). Where a code is uncertain, bounds include the effect of
    both codes.
    """
    linear, gradient = rule.linear, rule.gradient
    x = FakeQuantized(
        inputs.astype(np.float64), np.ones(inputs.shape), np.zeros(inputs.shape), np.zeros(inputs.shape, bool)
    )
    if linear.inputs is not None:
        x = fake_quantize(inputs, linear.inputs, gradient, ranges[0])
    w = fake_quantize(weight, linear.weight, gradient)
    k, n, m = weight.shape[0], len(inputs), weight.shape[1]
    exact = x.values @ w.values + bias
    from_codes = (x.uncertain * x.step) @ np.abs(w.values) + np.abs(x.values) @ (w.uncertain * w.step)
    rounding = (k + 8) * formats.U * (np.abs(x.values) @ np.abs(w.values) + np.abs(bias)) + from_codes
    back, uncertainty = passed_back.astype(np.float64), np.zeros((n, m))
    outputs, bound = exact, rounding
    if linear.outputs is not None and ranges[1] is not None:
        y = fake_quantize(exact, linear.outputs, gradient, ranges[1], rounding)
        outputs = y.values
        bound = y.uncertain * y.step + 4 * formats.U * (np.abs(y.values) + y.step)
        back, uncertainty = back * y.passes, np.abs(back) * y.uncertain
    return FakeLayer(
        outputs,
        bound,
        (x.values.T @ back) * w.passes,
        _gradient_bound(x.values.T, back, uncertainty, n)
        + np.abs(x.values.T @ back) * w.uncertain
        + (x.uncertain * x.step).T @ np.abs(back),
        (back @ w.values.T) * x.passes,
        _gradient_bound(back, w.values.T, None, m)
        + uncertainty @ np.abs(w.values.T)
        + np.abs(back @ w.values.T) * x.uncertain
        + np.abs(back) @ (w.uncertain * w.step).T,
    )


def _gradient_bound(left: Array, right: Array, uncertainty: Array | None, terms: int) -> Array:
    """Return the bound of a product of two matrices, where gradients in the right one may be off by `uncertainty`."""
    bound = (terms + 16) * formats.U * (np.abs(left) @ np.abs(right))
    return bound if uncertainty is None else bound + np.abs(left) @ uncertainty


def follow_ranges(batches: Sequence[tuple[float, float]], average: float) -> list[tuple[float, float]]:
    """Return the range after each batch, from the lowest and highest value of each; the first batch sets the range."""
    result = [batches[0]]
    for ends in batches[1:]:
        former = result[-1]
        result.append((former[0] + average * (ends[0] - former[0]), former[1] + average * (ends[1] - former[1])))
    return result


def codes_of(ends: tuple[float, float], rule: QuantRule) -> tuple[float, float]:
    """Return the scale of a range, and its unrounded zero point."""
    row = np.array([ends])
    whole = QuantRule(rule.low, rule.high, rule.divisor, rule.symmetric, epsilon=rule.epsilon)
    scale = float(formats.scale_of(row, whole)[0, 0])
    return scale, 0.0 if rule.symmetric else float(np.clip(rule.low - min(ends[0], 0.0) / scale, rule.low, rule.high))


def ranges_of(observed: Mapping[str, Calibrated]) -> dict[str, Array]:
    """Return ranges of inputs and outputs, with all bits."""
    result: dict[str, Array] = {}
    for name, calibrated in observed.items():
        result[f"inputs of {name}"] = np.array([calibrated.inputs.scale, calibrated.inputs.zero_point])
        if calibrated.outputs is not None:
            result[f"outputs of {name}"] = np.array([calibrated.outputs.scale, calibrated.outputs.zero_point])
    return result


def check_following(
    verdict: Verdict, rule: QatRule, code_range: CodeRange, batch_ranges: Sequence[tuple[float, float]], what: str
) -> None:
    """Check that an input range is the moving average of the batches' ranges, each given as (lowest, highest).

    Raises:
        ValueError: inputs have no codes.
    """
    if rule.linear.inputs is None:
        raise ValueError("inputs have no codes")
    scale, zero = codes_of(follow_ranges(batch_ranges, rule.average)[-1], rule.linear.inputs)
    derivation = {"method": "roundings of float32, three a batch and four of the scale", "u": formats.U}
    roundings = Bound((3 * len(batch_ranges) + 4) * formats.U, derivation)
    verdict.within(abs(code_range.scale - scale) / scale, roundings, f"scale {what}", "scale")
    half = Bound(0.5 + 512 * roundings.value, {"method": "half a code, from low - min / scale"})
    verdict.within(abs(code_range.zero_point - zero), half, f"zero point {what}", "zero-point")
