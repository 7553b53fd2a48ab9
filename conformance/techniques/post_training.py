"""Post-training quantization: inputs with certain codes, expected results with their bounds, and checks."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need_rule
from conformance.oracle.bound import Bound
from conformance.techniques import Technique, formats
from conformance.techniques.formats import NEAR_A_TIE, U, check_codes, check_scale, worst_share
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Flatten, Head, Heads, LayerNorm, Model, dense_weights
from frameworks.contract import (
    Calibrated,
    Capability,
    CodeRange,
    LinearRule,
    PostTraining,
    Quantized,
    QuantizedModel,
    QuantRule,
)
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel

POST_TRAINING = Technique(
    rows={
        "dynamic-int8": "dynamic int8 quantization",
        "static-int8": "static int8 quantization",
        "weight-int8": "weight-only int8",
        "weight-int4": "weight-only int4",
        "load-int8": "8-bit loading, outlier columns in floating point",
    },
    clauses={"quantization.calibrat*": "static-int8", "quantization.int8-load": "load-int8"},
    breaks=(
        "quantization.calibrated-range",
        "quantization.dynamic-scale",
        "quantization.linear-arithmetic",
        "quantization.only-what-was-asked",
        "quantization.survives-saving",
        "quantization.weights-as-declared",
    ),
    features=tuple(f"quantized={kind}" for kind in ("skips", "loads", "small-weights", "bias-before-dense")),
    places={ReferenceQuantizedModel: ("quantized_model_class", ReferenceFramework)},
)


STEP = 0.0137
"""The scale of drawn inputs, which is far from any power of two."""
_MOVE, _MOVES = 2.0**-20, 4
"""Relative size and number of random perturbations of the samples."""
_FURTHEST = 0.4
"""Largest distance of a generated quotient from an integer."""
USUAL = 6.0
"""The outlier threshold where a rule has none: Dettmers et al. 2022, arXiv:2208.07339, section 3.2."""
_COLUMN = 20
"""Column in which `_with_column` puts the outlier, if the inputs are wide enough."""
TECHNIQUES = ("dynamic-int8", "static-int8", "weight-int8", "weight-int4", "load-int8")
DYNAMIC, STATIC = TECHNIQUES[:2]
TECHNIQUE = pytest.mark.parametrize("technique", TECHNIQUES)
LAYERS = (Dense(33), Activation("relu"), LayerNorm(), Dense(17), Activation("tanh"), Heads((Head("output", 5),)))
MIXED = Model("mixed", LAYERS, (160,), (("output", "squared_error"),))
"""A model whose sizes no group divides, with a norm between layers."""
ROWS = 9
OF_ITS_BOUND = {"method": "in units of the bound that is derived for each value"}


def random_inputs(
    rows: int, width: int, rule: QuantRule | None, code_range: CodeRange | None, seed: int, step: float = STEP
) -> Array:
    """Return a float32 matrix whose quotients are within 0.4 of a code; rows differ in magnitude and have both signs.

    If the call computes ranges, they end at the divisor, so that their scale is `step` times a power of two for each
    row with a range of its own. Some values exceed a calibrated `code_range` at both ends. The neighbours of these are
    small: on processors without VNNI, sums of two large products are documented to saturate at 16 bits.
    """
    rng = np.random.default_rng([seed, 7])
    smaller = 2.0 ** -(np.arange(rows)[:, None] % 4)
    if rule is None:
        return np.asarray(rng.standard_normal((rows, width)) * smaller, np.float32)
    between = rng.uniform(-_FURTHEST, _FURTHEST, (rows, width))
    if code_range is not None:
        whole = rule.divisor * (2 if rule.symmetric else 1)
        codes = np.rint(rng.uniform(0.0, whole * smaller, (rows, width)))
        codes[3::4, ::8] = whole + np.rint(rng.uniform(1.0, 20.0, codes[3::4, ::8].shape))
        codes[3::4, 4::8] = -np.rint(rng.uniform(1.0, 20.0, codes[3::4, 4::8].shape))
        lowest = -rule.divisor // 1 if rule.symmetric else rule.low
        return np.asarray((codes + lowest - code_range.zero_point + between) * code_range.scale, np.float32)
    below = 0.0 if rule.symmetric else float(int(rule.divisor * 0.4) | 1)
    lowest, highest = (-(rule.divisor // 1), rule.divisor) if rule.symmetric else (-below, rule.divisor - below)
    shrunk = smaller if rule.axis is None else np.ones_like(smaller)
    quotients = np.rint(rng.uniform((lowest + 1) * shrunk, (highest - 1) * shrunk, (rows, width))) + between
    ends = [highest] if rule.symmetric else [highest, lowest]
    for row in range(1 if rule.axis is None else rows):
        quotients[row, rng.permutation(width)[: len(ends)]] = ends
    steps = step * (np.ones_like(smaller) if rule.axis is None else smaller)
    return np.asarray(quotients * steps, np.float32)


def fake_quantize_inputs(inputs: Array, rule: QuantRule, code_range: CodeRange | None, ranged: Array) -> Array:
    """Return the dequantized inputs, float64, by the given range or that of `ranged`."""
    if code_range is None:
        scale = formats.scale_of(ranged, rule)
        lowest, _ = formats.ranges(ranged.astype(np.float64), rule)
        zero = np.zeros_like(scale) if rule.symmetric else np.rint(rule.low - np.minimum(lowest, 0.0) / scale)
    else:
        scale, zero = np.array(code_range.scale), np.array(float(code_range.zero_point))
    return np.asarray((formats.codes(inputs.astype(np.float64) / scale, zero, rule) - zero) * scale)


def cast(operand: Array, rule: LinearRule) -> Array:
    """Return a float32 weight or inputs, rounded to the format from which codes are computed."""
    with np.errstate(over="ignore"):
        return operand.astype(rule.operands).astype(np.float32)


def step_of(rule: LinearRule, largest: float | None = None) -> float:
    """Return a scale for drawn inputs, near `STEP` or from `largest`, whose largest value the cast does not round."""
    divisor = 1.0 if rule.inputs is None else rule.inputs.divisor
    return float(cast(np.array(STEP * divisor if largest is None else largest, np.float32), rule)) / divisor


def outlying(inputs: Array, rule: LinearRule) -> Array:
    """Return which columns of the inputs reach the outlier threshold."""
    return np.asarray((np.abs(cast(inputs, rule)) >= rule.outliers).any(axis=0))


def zero_outliers(inputs: Array, rule: LinearRule) -> Array:
    """Return the inputs with zeros for outliers, float32, from which ranges are computed."""
    narrow = cast(inputs, rule)
    without = outlying(inputs, rule) if rule.without == "columns" else np.abs(narrow) >= rule.outliers
    return np.where(without, np.float32(0.0), narrow)


def dequantize_inputs(inputs: Array, rule: LinearRule, code_range: CodeRange | None) -> Array:
    """Return the left operand of the product, float64: dequantized inputs, with outlier columns unchanged."""
    x = inputs.astype(np.float64)
    if rule.inputs is None:
        return x
    outliers = outlying(inputs, rule)
    rest = np.where(outliers, np.float32(0.0), cast(inputs, rule))
    return np.where(outliers, x, fake_quantize_inputs(rest, rule.inputs, code_range, zero_outliers(inputs, rule)))


def linear(
    inputs: Array, weight: Quantized, bias: Array | None, rule: LinearRule, calibrated: Calibrated | None
) -> tuple[Array, Array]:
    """Return the layer's output before it is quantized, float64, and the bound of a float32 result.

    The bound is (k + 8)·u·Σ|x||w| for k terms: their sum, two scales, the products with these, and the bias.
    """
    x = dequantize_inputs(inputs, rule, calibrated.inputs if calibrated else None)
    w = (weight.codes - weight.zero_point.astype(np.float64)) * weight.scale
    added = np.zeros(w.shape[1]) if bias is None else bias.astype(np.float64)
    terms = w.shape[0] + 8
    return x @ w + added, terms * U * (np.abs(x) @ np.abs(w) + np.abs(added))


def wrong_output_codes(measured: Array, exact: Array, bound: Array, rule: QuantRule, code_range: CodeRange) -> int:
    """Return the number of results that have neither the exact result's code nor, if the bound reaches half-way, an
    adjacent one."""
    quotient = exact / code_range.scale
    expected = formats.codes(quotient, np.array(float(code_range.zero_point)), rule)
    result = measured.astype(np.float64) / code_range.scale + code_range.zero_point
    to_a_half = np.abs(quotient - np.floor(quotient) - 0.5)
    allowed = np.where(to_a_half <= bound / code_range.scale + NEAR_A_TIE * np.abs(quotient), 1.0, 0.0)
    return int(np.sum(~(np.abs(result - expected) <= allowed + 1e-3)))


def layer_inputs_and_outputs(
    model: Model, weights: Mapping[str, Array], batches: Sequence[Array]
) -> dict[str, tuple[Array, Array]]:
    """Return inputs and outputs of each dense layer of the float model over all batches, float64, by weight's name."""
    result: dict[str, tuple[Array, Array]] = {}
    x = np.concatenate(batches).astype(np.float64)

    def dense(name: str, inputs: Array) -> Array:
        bias = weights.get(bias_of(name))
        outputs = inputs @ weights[name].astype(np.float64) + (0.0 if bias is None else bias.astype(np.float64))
        result[name] = (inputs, outputs)
        return np.asarray(outputs)

    for index, layer in enumerate(model.layers[:-1]):
        match layer:
            case Dense():
                x = dense(f"{index}.weight", x)
            case Activation(kind="relu"):
                x = np.maximum(x, 0.0)
            case Activation(kind="tanh"):
                x = np.tanh(x)
            case LayerNorm(epsilon=epsilon):
                centred = x - x.mean(-1, keepdims=True)
                normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
                x = normal * weights[f"{index}.scale"] + weights[f"{index}.shift"]
            case Flatten():
                x = x.reshape(len(x), -1)
            case _:
                raise ValueError(f"no {type(layer).__name__} here")
    for head in model.heads.heads:
        dense(f"{len(model.layers) - 1}.{head.name}.weight", x)
    return result


def conditions(
    model: Model, weights: Mapping[str, Array], batches: Sequence[Array], by_layer: Mapping[str, tuple[Array, Array]]
) -> dict[str, float]:
    """Return how far the ranges of each dense layer's inputs and outputs move, relative to the samples, by weight.

    It is the largest of a few random moves, and at least 1. A norm of values that are nearly equal amplifies moves.

    Args:
        by_layer: result of `layer_inputs_and_outputs` for the same batches.
    """
    rng = np.random.default_rng(7)
    result = dict.fromkeys(by_layer, 1.0)
    for _ in range(_MOVES):
        moved = [batch * (1.0 + _MOVE * rng.uniform(-1.0, 1.0, batch.shape)) for batch in batches]
        for name, arrays in layer_inputs_and_outputs(model, weights, moved).items():
            for before, after in zip(by_layer[name], arrays, strict=True):
                furthest = max(abs(before.max() - after.max()), abs(before.min() - after.min()))
                largest = float(np.abs(before).max())
                result[name] = max(result[name], furthest / largest / _MOVE if largest else 1.0)
    return result


def range_gaps(values: Array, rule: QuantRule, code_range: CodeRange) -> tuple[float, float]:
    """Return the errors of scale (relative) and zero point (in codes) for the values' range.

    If the right scale is 0, as for a range of zeros, the error of the scale is absolute.
    """
    row = values.reshape(1, -1)
    whole = rule if rule.axis is None else QuantRule(rule.low, rule.high, rule.divisor, rule.symmetric)
    wanted = float(formats.scale_of(row, whole)[0, 0])
    exact = 0.0 if rule.symmetric else rule.low - min(float(row.min()), 0.0) / (wanted or 1.0)
    error = abs(code_range.scale - wanted)
    return error / wanted if wanted else error, abs(code_range.zero_point - exact)


def predict_outputs(
    model: Model, quantized: QuantizedModel, weights: Mapping[str, Array], rule: LinearRule, samples: Array
) -> dict[str, tuple[Array, Array]]:
    """Return the output of each head of a model without norms, by its layers in sequence, and the bound.

    Inputs of a layer are known up to the roundings before it, so that each of their codes may be off by one. This error
    propagates through the absolute values of the weights.
    """
    x: Array = samples.astype(np.float64)
    error: Array = np.zeros(samples.shape)

    def dense(name: str) -> tuple[Array, Array]:
        stored, calibrated = quantized.weights()[name], quantized.calibrated_ranges().get(name)
        weight, code = weights[name].astype(np.float64), 0.0
        if stored is not None:
            weight = (stored.codes - stored.zero_point.astype(np.float64)) * stored.scale
            if calibrated is not None:
                code = calibrated.inputs.scale
            elif rule.inputs is not None:
                code = 2.0 * float((np.abs(x) + error).max(initial=0.0)) / rule.inputs.divisor
        entering = error + code if error.any() else error
        bias = weights.get(bias_of(name), np.zeros(weight.shape[1]))
        rounding = 2 * (len(weight) + 8) * U * ((np.abs(x) + entering + code) @ np.abs(weight) + np.abs(bias))
        outputs = calibrated.outputs.scale if calibrated is not None and calibrated.outputs is not None else 0.0
        result = quantized.layer(name, x.astype(np.float32)).astype(np.float64)
        return result, entering @ np.abs(weight) + rounding + outputs

    for index, layer in enumerate(model.layers[:-1]):
        match layer:
            case Dense():
                x, error = dense(f"{index}.weight")
            case Activation(kind="relu"):
                x = np.maximum(x, 0.0)
            case Activation(kind="tanh"):
                x, error = np.tanh(x), error + 16 * U * np.abs(np.tanh(x))
            case Flatten():
                x, error = (array.reshape(len(x), -1) for array in (x, error))
            case _:
                raise ValueError(f"no {type(layer).__name__} here")
    return {head.name: dense(f"{len(model.layers) - 1}.{head.name}.weight") for head in model.heads.heads}


def threshold(rule: LinearRule) -> float:
    """Return the rule's outlier threshold, or the usual one if it has none."""
    return rule.outliers if np.isfinite(rule.outliers) else USUAL


def below(rule: LinearRule) -> float:
    """Return the largest value of the operands' format that is below the outlier threshold."""
    return float(np.nextafter(np.dtype(rule.operands).type(threshold(rule)), np.dtype(rule.operands).type(0.0)))


def _plain(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return random_inputs(rows, width, rule.inputs, None, seed, step_of(rule))


def _with_column(share: float, rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """Return inputs with one outlier of `share` thresholds; its column's rest is up to three times all other values.

    The codes of a row are certain whether or not its range includes that column: a third of a quotient within 0.4 of an
    integer is never half-way.
    """
    quarter = threshold(rule) / 4
    rest = random_inputs(rows, width - 1, rule.inputs, None, seed, step_of(rule, quarter))
    column = 3 * quarter * 2.0 ** -(np.arange(rows) % 4) * (-1.0) ** np.arange(rows)
    column[rows // 2] = share * threshold(rule)
    return np.insert(rest, min(_COLUMN, width - 1), column.astype(np.float32), axis=1)


def _below(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """Return inputs of both signs whose largest value is just below the threshold."""
    values = random_inputs(rows, width, rule.inputs, None, seed, step_of(rule, below(rule)))
    values[rows // 2 :] *= -1.0
    return values


def _all(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """Return inputs with an outlier in each column, in varying rows."""
    rng = np.random.default_rng([seed, 8])
    values = _plain(rows, width, rule, seed)
    places = np.arange(width)
    signs = np.where(places % 2, -1.0, 1.0)
    values[places % rows, places] = signs * rng.uniform(1.0, 3.0, width) * threshold(rule)
    return values


CASES: Mapping[str, Callable[[int, int, LinearRule, int], Array]] = MappingProxyType(
    {
        "none": _plain,
        "below": _below,
        "at": partial(_with_column, 1.0),
        "one": partial(_with_column, 20.0),
        "negative": partial(_with_column, -20.0),
        "all": _all,
    }
)
"""Functions that draw a float32 matrix (rows, width), by which columns reach the threshold. All codes are certain."""


def from_float(inputs: Array, weight: Array, bias: Array, rule: LinearRule) -> tuple[Array, Array]:
    """Return the float32 layer's output, and the bound of an int8 layer's distance from it, both float64.

    A weight is off by half a code and its cast, |w|·2⁻¹¹ in float16, and so are inputs that have codes. Inputs without
    codes leave only the weight's error, ‖x‖₁·amax·(1/254 + 2⁻¹¹) for each output. Float32 rounding is added.
    """
    x, w, added = (array.astype(np.float64) for array in (inputs, weight, bias))
    narrow, off_x = cast(weight, rule), np.zeros(inputs.shape)
    off_w = formats.scale_of(narrow, rule.weight) / 2 + np.abs(narrow - w)
    if rule.inputs is not None:
        code = formats.scale_of(zero_outliers(inputs, rule), rule.inputs)
        off_x = np.where(outlying(inputs, rule), 0.0, code / 2 + np.abs(cast(inputs, rule) - x))
    rounding = (len(w) + 8) * formats.U * ((np.abs(x) + off_x) @ (np.abs(w) + off_w) + np.abs(added))
    return x @ w + added, np.abs(x) @ off_w + off_x @ (np.abs(w) + off_w) + rounding


def make_mixed_model(rule: LinearRule) -> Model:
    """Return `MIXED` or, if small weights are not quantized, a model in which every layer but one head has codes.

    The weight of the other head has the smallest size that has codes, if 32 divides that size.
    """
    if not rule.smallest:
        return MIXED
    fewest = -(-rule.smallest // 32)
    heads = Heads((Head("output", max(5, fewest)), Head("small", min(5, max(1, fewest - 1)))))
    layers = (Dense(max(33, fewest + 1)), *LAYERS[1:3], Dense(32), LAYERS[4], heads)
    return Model("large", layers, MIXED.sample, tuple((head.name, "squared_error") for head in heads.heads))


def foreign(model: Model, how: str) -> Model:
    """Return a model unlike the given one: its first layer or, by default, its first head has another output width."""
    first, *between, heads = model.layers
    assert isinstance(first, Dense)
    assert isinstance(heads, Heads)
    if how == "other-shape":
        return replace(model, name="wider", layers=(replace(first, units=first.units + 1), *between, heads))
    head, *others = heads.heads
    wider = replace(heads, heads=(replace(head, units=head.units + 1), *others))
    return replace(model, name="wider", layers=(first, *between, wider))


def rule_of(subject: Subject, technique: str) -> LinearRule:
    """Return the declared rule of a technique; end the test if there is none."""
    return need_rule(subject, Capability(f"quantization.{technique}"), PostTraining).rules()[technique]


def batches(model: Model, seed: int = 0) -> tuple[Array, ...]:
    """Return three batches of samples, with the largest values in the second."""
    rng = np.random.default_rng([seed, 4])
    drawn = (rng.standard_normal((size, *model.sample)) for size in (7, 5, 8))
    return tuple((values * factor).astype(np.float32) for values, factor in zip(drawn, (1.0, 3.0, 0.5), strict=True))


def make_quantized(
    subject: Subject, technique: str, model: Model | None = None, seed: int = 0, **more: Sequence[str]
) -> QuantizedModel:
    """Return the quantized and calibrated model with its own weights, by default the technique's mixed model."""
    post_training = subject.framework.rule(PostTraining)
    model = model or make_mixed_model(post_training.rules()[technique])
    return post_training.quantize(technique, model, unlike_weights(model, seed), batches(model, seed), **more)


def try_predict(make: Callable[[], QuantizedModel], samples: Array) -> tuple[str, dict[str, Array]]:
    """Return the message by which a model is refused and no predictions, or "" and its predictions."""
    try:
        return "", make().predict(samples)
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}


def unlike_weights(model: Model, seed: int = 0) -> dict[str, Array]:
    """Return weights whose columns differ in magnitude, with biases other than 0 and norms other than 1."""
    rng = np.random.default_rng([seed, 3])
    weights = model.weights(seed)
    for name, value in weights.items():
        moved = value * 2.0 ** -(np.arange(value.shape[-1]) % 5) if name.endswith("weight") else value
        noise = 0.0 if name.endswith("weight") else 0.3 * rng.standard_normal(value.shape)
        weights[name] = np.asarray(moved + noise, np.float32)
    return weights


def bias_of(weight: str) -> str:
    """Return the name of the bias of a dense layer, given its weight's name."""
    return f"{weight.removesuffix('.weight')}.bias"


def quantized_layers(model: Model, rule: LinearRule) -> dict[str, tuple[int, ...]]:
    """Return shapes of the weights that a technique quantizes."""
    head, small = f"{len(model.layers) - 1}.", small_layers(model, rule)
    return {n: s for n, s in dense_weights(model).items() if n not in small and (rule.heads or not n.startswith(head))}


def small_layers(model: Model, rule: LinearRule) -> dict[str, tuple[int, ...]]:
    """Return shapes of the weights that are too small for a technique."""
    return {name: shape for name, shape in dense_weights(model).items() if math.prod(shape) < rule.smallest}


def collect_arrays(quantized: QuantizedModel) -> dict[str, Array]:
    """Return every array of a quantized model, with all bits."""
    arrays = dict(quantized.unquantized_parameters())
    for name, weight in quantized.weights().items():
        if weight is not None:
            arrays |= {f"codes/{name}": weight.codes, f"scale/{name}": weight.scale, f"zero/{name}": weight.zero_point}
    for name, ranges in quantized.calibrated_ranges().items():
        for what, code_range in (("inputs", ranges.inputs), ("outputs", ranges.outputs)):
            if code_range is not None:
                arrays[f"{what}/{name}"] = np.array([code_range.scale, code_range.zero_point])
    return arrays


def check_chosen(verdict: Verdict, quantized: QuantizedModel, weights: dict[str, Array], wanted: Sequence[str]) -> None:
    """Check that exactly these layers are quantized, and every other parameter is unchanged."""
    result = sorted(name for name, weight in quantized.weights().items() if weight is not None)
    verdict.equal(result, sorted(wanted), "quantized layers", "other-layers")
    others = {name: value for name, value in weights.items() if name not in wanted}
    verdict.same_state(quantized.unquantized_parameters(), others, "other parameters", "kept-differ")


def check_weights(verdict: Verdict, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array]) -> None:
    """Check that each quantized weight has the rule's scales and codes."""
    for name, weight in quantized.weights().items():
        if weight is not None:
            operand = cast(weights[name], rule)
            check_scale(verdict, operand, weight, rule.weight, f" of {name}")
            check_codes(verdict, operand, weight, rule.weight, f" of {name}")


def check_near(verdict: Verdict, measured: Array, exact: Array, bound: Array, what: str, signature: str) -> None:
    """Check that each value is within its own bound; where the bound is 0, it must be exact."""
    verdict.within(worst_share(measured, exact, bound), Bound(1.0, OF_ITS_BOUND), what, signature)


def check_layer(
    verdict: Verdict, rule: LinearRule, model: QuantizedModel, name: str, inputs: Array, bias: Array | None
) -> None:
    """Check that a layer's output follows from its codes."""
    weight, calibrated = model.weights()[name], model.calibrated_ranges().get(name)
    assert weight is not None
    measured = model.layer(name, inputs)
    exact, bound = linear(inputs, weight, bias, rule, calibrated)
    if rule.outputs is None or calibrated is None or calibrated.outputs is None:
        check_near(verdict, measured, exact, bound, f"what {name} gives", "layer-differs")
    else:
        wrong = wrong_output_codes(measured, exact, bound, rule.outputs, calibrated.outputs)
        verdict.equal(wrong, 0, f"wrong output codes of {name}", "layer-differs")


def float_result(inputs: Array, weight: Array, bias: Array | None) -> tuple[Array, Array]:
    """Return the output of a layer that is not quantized, float64, and the bound of a float32 result."""
    added = np.zeros(weight.shape[1]) if bias is None else bias
    exact = inputs.astype(np.float64) @ weight + added
    return exact, (len(weight) + 2) * formats.U * (np.abs(inputs) @ np.abs(weight) + np.abs(added))


def check_float_layer(
    verdict: Verdict, model: QuantizedModel, name: str, inputs: Array, weight: Array, bias: Array | None
) -> None:
    """Check that the output of a layer that is not quantized follows from its weight."""
    exact, bound = float_result(inputs, weight, bias)
    check_near(
        verdict, model.layer(name, inputs), exact, bound, f"what {name} gives, which was left out", "skipped-differs"
    )


def check_dense(
    verdict: Verdict,
    rule: LinearRule,
    model: QuantizedModel,
    name: str,
    weights: dict[str, Array],
    *,
    rows: int,
    seed: int,
) -> None:
    """Check that a layer's output for generated inputs (rows, ...) follows from the rule for a weight of its size."""
    weight, bias = weights[name], weights.get(bias_of(name))
    if weight.size < rule.smallest:
        inputs = np.random.default_rng([seed, 8]).standard_normal((rows, len(weight))).astype(np.float32)
        verdict.equal(model.weights()[name], None, f"codes of {name}", "other-layers")
        check_float_layer(verdict, model, name, inputs, weight, bias)
    else:
        check_layer(verdict, rule, model, name, input_values(rule, model, name, rows, len(weight), seed), bias)


def check_ranges(
    verdict: Verdict, rule: LinearRule, name: str, calibrated: Calibrated, arrays: tuple[Array, Array], terms: int
) -> None:
    """Check that a layer's calibrated ranges are those of its inputs and outputs, up to rounding in `terms` terms."""
    for what, values, wanted, result in (
        ("inputs", arrays[0], rule.inputs, calibrated.inputs),
        ("outputs", arrays[1], rule.outputs, calibrated.outputs),
    ):
        if wanted is None or result is None:
            continue
        scale, zero = range_gaps(values, wanted, result)
        rounding = 3.2 * terms * formats.U
        derivation = {"method": f"float32 sums of at most {terms} terms through the layers", "u": formats.U}
        verdict.within(scale, Bound(rounding, derivation), f"scale of the {what} of {name}", "scale")
        half = Bound(0.5 + 256 * rounding, {"method": "half a code, from low - min / scale"})
        verdict.within(zero, half, f"zero point of the {what} of {name}", "zero-point")


def check_same_ranges(verdict: Verdict, name: str, converted: Calibrated, known: Calibrated) -> None:
    """Check that a converted layer has the run's ranges."""
    rounding = Bound(4 * formats.U, {"method": "four roundings of float32", "u": formats.U})
    for what, theirs, ours in (
        ("inputs", converted.inputs, known.inputs),
        ("outputs", converted.outputs, known.outputs),
    ):
        if theirs is not None and ours is not None:
            verdict.equal(theirs.zero_point, ours.zero_point, f"zero point of the {what} of {name}", "other-ranges")
            error = abs(theirs.scale - ours.scale) / ours.scale
            verdict.within(error, rounding, f"scale of the {what} of {name}", "other-ranges")


def rows_with_codes(rule: LinearRule, model: QuantizedModel, name: str, inputs: Array, bias: Array | None) -> Array:
    """Return the rows of a layer's inputs for which all values and results lie within their ranges."""
    weight, calibrated = model.weights()[name], model.calibrated_ranges().get(name)
    if weight is None or calibrated is None:
        return inputs
    exact, _ = linear(inputs, weight, bias, rule, calibrated)
    inside = np.ones(len(inputs), bool)
    for values, codes, code_range in (
        (inputs, rule.inputs, calibrated.inputs),
        (exact, rule.outputs, calibrated.outputs),
    ):
        if codes is not None and code_range is not None:
            unclipped = values / code_range.scale + code_range.zero_point
            inside &= ((unclipped >= codes.low) & (unclipped <= codes.high)).all(axis=1)
    return np.asarray(inputs[inside])


def input_values(rule: LinearRule, model: QuantizedModel, name: str, rows: int, width: int, seed: int) -> Array:
    """Return inputs of a layer whose codes no rounding can change."""
    calibrated = model.calibrated_ranges().get(name)
    code_range = calibrated.inputs if calibrated else None
    step = STEP if rule.operands == "float32" else step_of(rule)
    return random_inputs(rows, width, rule.inputs, code_range, seed, step)
