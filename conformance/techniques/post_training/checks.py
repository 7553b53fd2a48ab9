"""Checks of quantized layers against the rule that the framework declares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.oracle.bound import Bound
from conformance.techniques.formats import checks
from conformance.techniques.formats.checks import check_codes, check_scale
from conformance.techniques.post_training import expected_models
from fixtures.arrays import Array
from fixtures.model import Model, dense_weights
from frameworks.contract import Calibrated, LinearRule, QuantizedModel

OF_ITS_BOUND = {"method": "in units of the bound that is derived for each value"}


def unlike_weights(model: Model, seed: int = 0) -> dict[str, Array]:
    """Weights whose columns differ in magnitude, with biases other than 0 and norms other than 1."""
    rng = np.random.default_rng([seed, 3])
    weights = model.weights(seed)
    for name, value in weights.items():
        moved = value * 2.0 ** -(np.arange(value.shape[-1]) % 5) if name.endswith("weight") else value
        noise = 0.0 if name.endswith("weight") else 0.3 * rng.standard_normal(value.shape)
        weights[name] = np.asarray(moved + noise, np.float32)
    return weights


def quantized_layers(model: Model, rule: LinearRule) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights that a technique quantizes."""
    last, small = f"{len(model.layers) - 1}.", small_layers(model, rule)
    return {n: s for n, s in dense_weights(model).items() if n not in small and (rule.heads or not n.startswith(last))}


def small_layers(model: Model, rule: LinearRule) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights that are too small for a technique."""
    return {name: shape for name, shape in dense_weights(model).items() if math.prod(shape) < rule.smallest}


def collect_arrays(quantized: QuantizedModel) -> dict[str, Array]:
    """Every array of a quantized model, bit for bit."""
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
    """Exactly these layers are quantized, and every other parameter is unchanged."""
    result = sorted(name for name, weight in quantized.weights().items() if weight is not None)
    verdict.equal(result, sorted(wanted), "quantized layers", "other-layers")
    others = {name: value for name, value in weights.items() if name not in wanted}
    verdict.same_state(quantized.unquantized_parameters(), others, "other parameters", "kept-differ")


def check_weights(verdict: Verdict, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array]) -> None:
    """Each quantized weight has the rule's scales and codes."""
    for name, weight in quantized.weights().items():
        if weight is not None:
            operand = expected_models.cast(weights[name], rule)
            check_scale(verdict, operand, weight, rule.weight, f" of {name}")
            check_codes(verdict, operand, weight, rule.weight, f" of {name}")


def check_near(verdict: Verdict, measured: Array, exact: Array, bound: Array, what: str, signature: str) -> None:
    """Each value is within its own bound; one without a bound is exact."""
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = float(np.max(np.where(measured == exact, 0.0, np.abs(measured - exact) / bound), initial=0.0))
    verdict.within(worst, Bound(1.0, OF_ITS_BOUND), what, signature)


def check_layer(
    verdict: Verdict, rule: LinearRule, model: QuantizedModel, name: str, inputs: Array, bias: Array | None
) -> None:
    """A layer's output follows from its codes."""
    weight, calibrated = model.weights()[name], model.calibrated_ranges().get(name)
    assert weight is not None
    measured = model.layer(name, inputs)
    exact, bound = expected_models.linear(inputs, weight, bias, rule, calibrated)
    if rule.outputs is None or calibrated is None or calibrated.outputs is None:
        check_near(verdict, measured, exact, bound, f"what {name} gives", "layer-differs")
    else:
        wrong = expected_models.wrong_output_codes(measured, exact, bound, rule.outputs, calibrated.outputs)
        verdict.equal(wrong, 0, f"wrong output codes of {name}", "layer-differs")


def float_result(inputs: Array, weight: Array, bias: Array | None) -> tuple[Array, Array]:
    """Output of a layer that is not quantized, float64, and how far a float32 result may be from it."""
    added = np.zeros(weight.shape[1]) if bias is None else bias
    exact = inputs.astype(np.float64) @ weight + added
    return exact, (len(weight) + 2) * checks.U * (np.abs(inputs) @ np.abs(weight) + np.abs(added))


def check_float_layer(
    verdict: Verdict, model: QuantizedModel, name: str, inputs: Array, weight: Array, bias: Array | None
) -> None:
    """The output of a layer that is not quantized follows from its weight."""
    exact, bound = float_result(inputs, weight, bias)
    check_near(
        verdict, model.layer(name, inputs), exact, bound, f"what {name} gives, which was left out", "skipped-differs"
    )


def check_dense(
    verdict: Verdict,
    rule: LinearRule,
    model: QuantizedModel,
    name: str,
    rows: int,
    seed: int,
    weights: dict[str, Array],
) -> None:
    """A layer's output for generated inputs (rows, ...) follows from the rule for a weight of its size."""
    weight, bias = weights[name], weights.get(name.replace(".weight", ".bias"))
    if weight.size < rule.smallest:
        inputs = np.random.default_rng([seed, 8]).standard_normal((rows, len(weight))).astype(np.float32)
        verdict.equal(model.weights()[name], None, f"codes of {name}", "other-layers")
        check_float_layer(verdict, model, name, inputs, weight, bias)
    else:
        check_layer(verdict, rule, model, name, input_values(rule, model, name, rows, len(weight), seed), bias)


def check_ranges(
    verdict: Verdict, rule: LinearRule, name: str, calibrated: Calibrated, arrays: tuple[Array, Array], terms: int
) -> None:
    """A layer's calibrated ranges are those of its inputs and outputs, up to the rounding of sums of `terms` terms."""
    for what, values, wanted, result in (
        ("inputs", arrays[0], rule.inputs, calibrated.inputs),
        ("outputs", arrays[1], rule.outputs, calibrated.outputs),
    ):
        if wanted is None or result is None:
            continue
        scale, zero = expected_models.range_gaps(values, wanted, result)
        rounding = 3.2 * terms * checks.U
        derivation = {"method": f"float32 sums of at most {terms} terms through the layers", "u": checks.U}
        verdict.within(scale, Bound(rounding, derivation), f"scale of the {what} of {name}", "scale")
        half = Bound(0.5 + 256 * rounding, {"method": "half a code, from low - min / scale"})
        verdict.within(zero, half, f"zero point of the {what} of {name}", "zero-point")


def check_same_ranges(verdict: Verdict, name: str, converted: Calibrated, known: Calibrated) -> None:
    """A converted layer has the run's ranges."""
    rounding = Bound(4 * checks.U, {"method": "four roundings of float32", "u": checks.U})
    for what, theirs, ours in (
        ("inputs", converted.inputs, known.inputs),
        ("outputs", converted.outputs, known.outputs),
    ):
        if theirs is not None and ours is not None:
            verdict.equal(theirs.zero_point, ours.zero_point, f"zero point of the {what} of {name}", "other-ranges")
            apart = abs(theirs.scale - ours.scale) / ours.scale
            verdict.within(apart, rounding, f"scale of the {what} of {name}", "other-ranges")


def rows_with_codes(rule: LinearRule, model: QuantizedModel, name: str, inputs: Array, bias: Array | None) -> Array:
    """The rows of a layer's inputs whose values and results all lie within their ranges."""
    weight, calibrated = model.weights()[name], model.calibrated_ranges().get(name)
    if weight is None or calibrated is None:
        return inputs
    exact, _ = expected_models.linear(inputs, weight, bias, rule, calibrated)
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
    """Inputs of a layer whose codes no rounding can change."""
    calibrated = model.calibrated_ranges().get(name)
    code_range = calibrated.inputs if calibrated else None
    step = expected_models.STEP if rule.operands == "float32" else expected_models.step_of(rule)
    return expected_models.random_inputs(rows, width, rule.inputs, code_range, seed, step)
