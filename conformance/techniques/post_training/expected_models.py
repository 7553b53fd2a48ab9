"""Expected results of quantized dense layers, by the declared rule and the reported codes; bounds under outliers.

u is the unit roundoff of float32. Inputs are drawn so that no quotient is near to half-way between two codes; a layer's
output is then known up to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from conformance.techniques.formats import checks
from conformance.techniques.formats.checks import NEAR_A_TIE, U
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Flatten, LayerNorm, Model
from frameworks.contract import Calibrated, CodeRange, LinearRule, Quantized, QuantizedModel, QuantRule

STEP = 0.0137
"""The scale of drawn inputs, far from any power of two."""
_MOVE, _MOVES = 2.0**-20, 4
"""Relative size and number of the perturbations of samples."""
_FURTHEST = 0.4
"""Largest distance of a generated quotient from an integer."""


def random_inputs(
    rows: int, width: int, rule: QuantRule | None, code_range: CodeRange | None, seed: int, step: float = STEP
) -> Array:
    """A float32 matrix whose quotients are within 0.4 of a code; rows have unlike magnitudes, and both signs.

    Ranges of the call end where the divisor says, so that their scale is `step` times a power of two for each row that
    has a range of its own. Calibrated ones, `code_range`, are exceeded at both ends by some values, whose
    neighbours are small: where both are large, sums of two products are documented to saturate at 16 bits on processors
    without VNNI.
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
    """The dequantized inputs, float64, by the range of `zero_outliers` or the given one."""
    if code_range is None:
        scale = checks.scale_of(ranged, rule)
        lowest, _ = checks.ranges(ranged.astype(np.float64), rule)
        zero = np.zeros_like(scale) if rule.symmetric else np.rint(rule.low - np.minimum(lowest, 0.0) / scale)
    else:
        scale, zero = np.array(code_range.scale), np.array(float(code_range.zero_point))
    return np.asarray((checks.codes(inputs.astype(np.float64) / scale, zero, rule) - zero) * scale)


def cast(operand: Array, rule: LinearRule) -> Array:
    """A weight, or inputs, float32, in the format from which codes are computed."""
    with np.errstate(over="ignore"):
        return operand.astype(rule.operands).astype(np.float32)


def step_of(rule: LinearRule, largest: float | None = None) -> float:
    """A scale of drawn inputs whose largest value, near `STEP` times the divisor or given, no cast rounds."""
    divisor = 1.0 if rule.inputs is None else rule.inputs.divisor
    return float(cast(np.array(STEP * divisor if largest is None else largest, np.float32), rule)) / divisor


def outlying(inputs: Array, rule: LinearRule) -> Array:
    """Which columns of the inputs reach the outlier threshold."""
    return np.asarray((np.abs(cast(inputs, rule)) >= rule.outliers).any(axis=0))


def zero_outliers(inputs: Array, rule: LinearRule) -> Array:
    """The inputs from which ranges are computed, float32, with zeros for outliers."""
    narrow = cast(inputs, rule)
    without = outlying(inputs, rule) if rule.without == "columns" else np.abs(narrow) >= rule.outliers
    return np.where(without, np.float32(0.0), narrow)


def entering(inputs: Array, rule: LinearRule, code_range: CodeRange | None) -> Array:
    """The left operand of the product, float64: dequantized inputs, and outlier columns as they are."""
    x = inputs.astype(np.float64)
    if rule.inputs is None:
        return x
    outliers = outlying(inputs, rule)
    rest = np.where(outliers, np.float32(0.0), cast(inputs, rule))
    return np.where(outliers, x, fake_quantize_inputs(rest, rule.inputs, code_range, zero_outliers(inputs, rule)))


def linear(
    inputs: Array, weight: Quantized, bias: Array | None, rule: LinearRule, calibrated: Calibrated | None
) -> tuple[Array, Array]:
    """The layer's output before it is quantized, float64, and the bound of a float32 one.

    (k + 8)·u·Σ|x||w| for k terms: their sum, and roundings of two scales, of products with them and of the bias.
    """
    x = entering(inputs, rule, calibrated.inputs if calibrated else None)
    w = (weight.codes - weight.zero_point.astype(np.float64)) * weight.scale
    added = np.zeros(w.shape[1]) if bias is None else bias.astype(np.float64)
    terms = w.shape[0] + 8
    return x @ w + added, terms * U * (np.abs(x) @ np.abs(w) + np.abs(added))


def wrong_output_codes(measured: Array, exact: Array, bound: Array, rule: QuantRule, code_range: CodeRange) -> int:
    """Number of results that are not the exact result's code, nor, where the bound reaches half-way, an adjacent
    one."""
    quotient = exact / code_range.scale
    expected = checks.codes(quotient, np.array(float(code_range.zero_point)), rule)
    result = measured.astype(np.float64) / code_range.scale + code_range.zero_point
    to_a_half = np.abs(quotient - np.floor(quotient) - 0.5)
    allowed = np.where(to_a_half <= bound / code_range.scale + NEAR_A_TIE * np.abs(quotient), 1.0, 0.0)
    return int(np.sum(~(np.abs(result - expected) <= allowed + 1e-3)))


def layer_inputs_and_outputs(
    model: Model, weights: Mapping[str, Array], batches: Sequence[Array]
) -> dict[str, tuple[Array, Array]]:
    """Inputs and outputs of each dense layer of the float model, float64, over all batches, by weight."""
    result: dict[str, tuple[Array, Array]] = {}
    x = np.concatenate(batches).astype(np.float64)

    def dense(name: str, inputs: Array) -> Array:
        bias = weights.get(name.replace(".weight", ".bias"))
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
    """Amplification: how far the ranges of a dense layer's inputs and outputs move, relative to the samples.

    By weight, at least 1, of a few random moves the furthest: a norm of values that are nearly equal magnifies them.

    Args:
        by_layer: what `layer_inputs_and_outputs` gives for the same batches.
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
    """Errors of scale (relative) and zero point (in codes) for the values' range.

    Of a range that has a scale of 0, as one of zeros may, the former is not relative.
    """
    row = values.reshape(1, -1)
    whole = rule if rule.axis is None else QuantRule(rule.low, rule.high, rule.divisor, rule.symmetric)
    wanted = float(checks.scale_of(row, whole)[0, 0])
    exact = 0.0 if rule.symmetric else rule.low - min(float(row.min()), 0.0) / (wanted or 1.0)
    apart = abs(code_range.scale - wanted)
    return apart / wanted if wanted else apart, abs(code_range.zero_point - exact)


def predict_outputs(
    model: Model, quantized: QuantizedModel, weights: Mapping[str, Array], rule: LinearRule, samples: Array
) -> dict[str, tuple[Array, Array]]:
    """The output of each head of a model without norms, by its layers in sequence, and the bound.

    What enters a layer is known up to the roundings before it, so that any of its codes may be one next to it; that
    error goes on through the absolute values of the weights.
    """
    x: Array = samples.astype(np.float64)
    off: Array = np.zeros(samples.shape)

    def dense(name: str) -> tuple[Array, Array]:
        stored, calibrated = quantized.weights()[name], quantized.calibrated_ranges().get(name)
        weight, code = weights[name].astype(np.float64), 0.0
        if stored is not None:
            weight = (stored.codes - stored.zero_point.astype(np.float64)) * stored.scale
            if calibrated is not None:
                code = calibrated.inputs.scale
            elif rule.inputs is not None:
                code = 2.0 * float((np.abs(x) + off).max(initial=0.0)) / rule.inputs.divisor
        entering = off + code if off.any() else off
        bias = weights.get(name.replace(".weight", ".bias"), np.zeros(weight.shape[1]))
        rounding = 2 * (len(weight) + 8) * U * ((np.abs(x) + entering + code) @ np.abs(weight) + np.abs(bias))
        outputs = calibrated.outputs.scale if calibrated is not None and calibrated.outputs is not None else 0.0
        result = quantized.layer(name, x.astype(np.float32)).astype(np.float64)
        return result, entering @ np.abs(weight) + rounding + outputs

    for index, layer in enumerate(model.layers[:-1]):
        match layer:
            case Dense():
                x, off = dense(f"{index}.weight")
            case Activation(kind="relu"):
                x = np.maximum(x, 0.0)
            case Activation(kind="tanh"):
                x, off = np.tanh(x), off + 16 * U * np.abs(np.tanh(x))
            case Flatten():
                x, off = (array.reshape(len(x), -1) for array in (x, off))
            case _:
                raise ValueError(f"no {type(layer).__name__} here")
    return {head.name: dense(f"{len(model.layers) - 1}.{head.name}.weight") for head in model.heads.heads}


USUAL = 6.0
"""The threshold of a rule that has none: Dettmers et al. 2022, arXiv:2208.07339, section 3.2."""
_COLUMN = 20


def threshold(rule: LinearRule) -> float:
    """The outlier threshold."""
    return rule.outliers if np.isfinite(rule.outliers) else USUAL


def below(rule: LinearRule) -> float:
    """The largest value of the operands' format below the outlier threshold."""
    return float(np.nextafter(np.dtype(rule.operands).type(threshold(rule)), np.dtype(rule.operands).type(0.0)))


def _plain(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return random_inputs(rows, width, rule.inputs, None, seed, step_of(rule))


def _with_column(rows: int, width: int, rule: LinearRule, seed: int, outlier: float) -> Array:
    """One row has the outlier; what others have in its column is none, and three times as large as all else of theirs.

    A row's codes are certain whether or not its range takes that in: a third of what is 0.4 of a code from an integer
    is no half.
    """
    quarter = threshold(rule) / 4
    rest = random_inputs(rows, width - 1, rule.inputs, None, seed, step_of(rule, quarter))
    column = 3 * quarter * 2.0 ** -(np.arange(rows) % 4) * (-1.0) ** np.arange(rows)
    column[rows // 2] = outlier
    return np.insert(rest, min(_COLUMN, width - 1), column.astype(np.float32), axis=1)


def _one(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return _with_column(rows, width, rule, seed, 20.0 * threshold(rule))


def _negative(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return _with_column(rows, width, rule, seed, -20.0 * threshold(rule))


def _at(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    return _with_column(rows, width, rule, seed, threshold(rule))


def _below(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """The largest value below the threshold, with both signs."""
    values = random_inputs(rows, width, rule.inputs, None, seed, step_of(rule, below(rule)))
    values[rows // 2 :] *= -1.0
    return values


def _all(rows: int, width: int, rule: LinearRule, seed: int) -> Array:
    """Each column has an outlier in a different row."""
    rng = np.random.default_rng([seed, 8])
    values = _plain(rows, width, rule, seed)
    places = np.arange(width)
    signs = np.where(places % 2, -1.0, 1.0)
    values[places % rows, places] = signs * rng.uniform(1.0, 3.0, width) * threshold(rule)
    return values


CASES: Mapping[str, Callable[[int, int, LinearRule, int], Array]] = MappingProxyType(
    {"none": _plain, "below": _below, "at": _at, "one": _one, "negative": _negative, "all": _all}
)
"""Which columns of a float32 matrix (rows, width) reach the threshold; all that has codes has certain ones."""


def from_float(inputs: Array, weight: Array, bias: Array, rule: LinearRule) -> tuple[Array, Array]:
    """The float32 layer's output, and the bound of an int8 layer's distance from it, both float64.

    A weight is off by half a code and its cast, |w|·2⁻¹¹ in float16; so are inputs that have codes. Of inputs that have
    none that is ‖x‖₁·amax·(1/254 + 2⁻¹¹) for each output. What float32 rounds comes on top.
    """
    x, w, added = (array.astype(np.float64) for array in (inputs, weight, bias))
    narrow, off_x = cast(weight, rule), np.zeros(inputs.shape)
    off_w = checks.scale_of(narrow, rule.weight) / 2 + np.abs(narrow - w)
    if rule.inputs is not None:
        code = checks.scale_of(zero_outliers(inputs, rule), rule.inputs)
        off_x = np.where(outlying(inputs, rule), 0.0, code / 2 + np.abs(cast(inputs, rule) - x))
    rounding = (len(w) + 8) * checks.U * ((np.abs(x) + off_x) @ (np.abs(w) + off_w) + np.abs(added))
    return x @ w + added, np.abs(x) @ off_w + off_x @ (np.abs(w) + off_w) + rounding
