"""Post-training quantization: quantized layers, their results and their bytes."""

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.checks.api import Bound, Subject, Verdict, clause
from conformance.search import explore
from conformance.techniques import formats
from conformance.techniques import post_training as expected
from conformance.techniques.post_training import (
    DYNAMIC,
    MIXED,
    OF_ITS_BOUND,
    ROWS,
    STATIC,
    TECHNIQUE,
    batches,
    bias_of,
    check_chosen,
    check_dense,
    check_float_layer,
    check_ranges,
    check_weights,
    collect_arrays,
    float_result,
    input_values,
    make_mixed_model,
    make_quantized,
    quantized_layers,
    rule_of,
    small_layers,
    try_predict,
    unlike_weights,
)
from fixtures.data import digits_batch
from fixtures.model import Activation, Dense, Head, Heads, Model, dense_weights
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Recipe
from frameworks.contract import PostTraining, QuantRule

SIZES = st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(1, 6), st.integers(-12, 12), st.integers(0, 99))
"""Inputs and outputs of a layer, rows of its batch, the exponent of 2 of its weights, and a seed."""


@clause("quantization.weights-as-declared")
@TECHNIQUE
def test_weight_codes_match_rule(subject: Subject, verdict: Verdict, technique: str) -> None:
    rule = rule_of(subject, technique)
    check_weights(verdict, make_quantized(subject, technique), rule, unlike_weights(make_mixed_model(rule)))


@clause("quantization.linear-arithmetic")
@TECHNIQUE
def test_layer_output_matches_its_codes(subject: Subject, verdict: Verdict, technique: str) -> None:
    rule = rule_of(subject, technique)
    model, quantized = make_mixed_model(rule), make_quantized(subject, technique)
    weights = unlike_weights(model)
    for name in [*quantized_layers(model, rule), *small_layers(model, rule)]:
        for rows in (1, ROWS):
            check_dense(verdict, rule, quantized, name, weights, rows=rows, seed=rows)


@clause("quantization.linear-arithmetic")
@TECHNIQUE
@explore(SIZES, examples=12)
def test_generated_layer_output_matches_its_codes(
    subject: Subject, verdict: Verdict, case: tuple[int, int, int, int, int], technique: str
) -> None:
    """If the rule leaves small weights unquantized, the layer is just large enough for codes."""
    rule = rule_of(subject, technique)
    width, outputs, rows, power, seed = case
    layers = (Dense(outputs), Activation("relu"), Heads((Head("output", 2),)))
    for inputs in sorted({width + 1, max(width + 1, -(-rule.smallest // outputs))}):
        model = Model("drawn", layers, (inputs,), (("output", "squared_error"),))
        weights = {name: value * np.float32(2.0**power) for name, value in unlike_weights(model, seed).items()}
        quantized = subject.framework.rule(PostTraining).quantize(technique, model, weights, batches(model, seed))
        check_dense(verdict, rule, quantized, "0.weight", weights, rows=rows, seed=seed)


@clause("quantization.linear-arithmetic")
@TECHNIQUE
def test_model_output_matches_its_layers(subject: Subject, verdict: Verdict, technique: str) -> None:
    """A model of heads only must give the heads' outputs; the first head has as many inputs as codes need."""
    rule = rule_of(subject, technique)
    if not rule.heads:
        verdict.abstain("this technique leaves heads as they are")
    width = max(40, -(-rule.smallest // 5))
    model = Model(
        "heads", (Heads((Head("a", 5), Head("b", 3))),), (width,), (("a", "squared_error"), ("b", "squared_error"))
    )
    weights, quantized = unlike_weights(model), make_quantized(subject, technique, model)
    samples = batches(model)[0]
    predicted = quantized.predict(samples)
    for head in ("a", "b"):
        name = f"0.{head}.weight"
        alone = quantized.layer(name, samples)
        weight, bias = quantized.weights()[name], weights[f"0.{head}.bias"]
        if name in small_layers(model, rule):
            verdict.equal(weight, None, f"codes of {name}", "other-layers")
            _, bound = float_result(samples, weights[name], bias)
        else:
            assert weight is not None
            _, bound = expected.linear(samples, weight, bias, rule, quantized.calibrated_ranges().get(name))
        verdict.within(float((np.abs(predicted[head] - alone) / (2 * bound)).max()), Bound(1.0, OF_ITS_BOUND), head)


@clause("quantization.dynamic-scale")
def test_row_is_independent_of_other_rows(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject, DYNAMIC)
    if rule.inputs is None or rule.inputs.axis != 1:
        verdict.abstain("no range of a row of its own is declared")
    weights, quantized = unlike_weights(make_mixed_model(rule)), make_quantized(subject, DYNAMIC)
    inputs = input_values(rule, quantized, "0.weight", ROWS, 160, 5)
    inputs[1] *= 10.0
    together = quantized.layer("0.weight", inputs)
    weight = quantized.weights()["0.weight"]
    assert weight is not None
    _, bound = expected.linear(inputs, weight, weights["0.bias"], rule, None)
    for row in range(ROWS):
        alone = quantized.layer("0.weight", inputs[row : row + 1])
        worst = float((np.abs(alone[0] - together[row]) / (2 * bound[row])).max())
        verdict.within(worst, Bound(1.0, OF_ITS_BOUND), f"row {row} alone and among others", "rows-depend")


@clause("quantization.dynamic-scale")
@TECHNIQUE
def test_call_is_independent_of_earlier_calls(subject: Subject, verdict: Verdict, technique: str) -> None:
    rule_of(subject, technique)
    quantized, fresh = make_quantized(subject, technique), make_quantized(subject, technique)
    small, before = batches(MIXED)[2], collect_arrays(quantized)
    quantized.predict(small * np.float32(100.0))
    verdict.same_state(
        quantized.predict(small), fresh.predict(small), "predictions after larger samples", "calls-depend"
    )
    verdict.same_state(collect_arrays(quantized), before, "the model after predictions", "prediction-changes-model")


@clause("quantization.calibrated-range")
@pytest.mark.parametrize("signs", ["both", "positive"])
def test_ranges_match_calibration(subject: Subject, verdict: Verdict, signs: str) -> None:
    rule = rule_of(subject, STATIC)
    weights, samples = unlike_weights(MIXED), batches(MIXED)
    if signs == "positive":
        samples = tuple(np.abs(sample) + np.float32(0.5) for sample in samples)
    quantized = subject.framework.rule(PostTraining).quantize(STATIC, MIXED, weights, samples)
    seen = expected.layer_inputs_and_outputs(MIXED, weights, samples)
    for name, ranges in quantized.calibrated_ranges().items():
        check_ranges(verdict, rule, name, ranges, seen[name], 160)


@clause("quantization.calibration-order")
@pytest.mark.parametrize("how", ["reversed", "twice"])
def test_calibration_order_does_not_matter(subject: Subject, verdict: Verdict, how: str) -> None:
    rule_of(subject, STATIC)
    samples = batches(MIXED)
    others = samples[::-1] if how == "reversed" else (*samples, *samples)
    post_training = subject.framework.rule(PostTraining)
    measured_arrays, expected_arrays = (
        collect_arrays(post_training.quantize(STATIC, MIXED, unlike_weights(MIXED), calibration))
        for calibration in (others, samples)
    )
    verdict.same_state(measured_arrays, expected_arrays, f"the model calibrated with batches {how}", "order-matters")


@clause("quantization.calibration-needed")
def test_uncalibrated_ranges_are_refused(subject: Subject, verdict: Verdict) -> None:
    rule_of(subject, STATIC)
    weights, samples = unlike_weights(MIXED), batches(MIXED)[0]
    text, predicted = try_predict(
        lambda: subject.framework.rule(PostTraining).quantize(STATIC, MIXED, weights), samples
    )
    if not text:
        ((_, outputs),) = [expected.layer_inputs_and_outputs(MIXED, weights, (samples,))["5.output.weight"]]
        near = np.abs(predicted["output"] - outputs) <= 1e-4 * np.abs(outputs).max()
        verdict.holds(bool(near.all()), "without calibration the float model stays", signature="uncalibrated")


@clause("quantization.only-what-was-asked")
@TECHNIQUE
@pytest.mark.parametrize("skipped", [(), ("3.weight",), ("0.weight", "5.output.weight")], ids=["none", "one", "two"])
def test_requested_layers_are_quantized(
    subject: Subject, verdict: Verdict, technique: str, skipped: tuple[str, ...]
) -> None:
    rule = rule_of(subject, technique)
    model, quantized = make_mixed_model(rule), make_quantized(subject, technique, skip=skipped)
    weights, wanted = unlike_weights(model), sorted(set(quantized_layers(model, rule)) - set(skipped))
    check_chosen(verdict, quantized, weights, wanted)
    for name in set(dense_weights(model)) - set(wanted):
        inputs = np.random.default_rng(1).standard_normal((ROWS, len(weights[name]))).astype(np.float32)
        bias = weights[bias_of(name)]
        check_float_layer(verdict, quantized, name, inputs, weights[name], bias)


@clause("quantization.only-what-was-asked")
@TECHNIQUE
def test_unknown_layer_name_is_refused(subject: Subject, verdict: Verdict, technique: str) -> None:
    rule_of(subject, technique)
    text, _ = try_predict(lambda: make_quantized(subject, technique, skip=("7.weight",)), batches(MIXED)[0])
    verdict.holds(bool(text), "a layer to leave out that is not there is refused", text, "an error", "not-refused")


@clause("quantization.bytes")
@TECHNIQUE
def test_storage_has_declared_bytes(subject: Subject, verdict: Verdict, technique: str) -> None:
    rule = rule_of(subject, technique)
    model, quantized = make_mixed_model(rule), make_quantized(subject, technique)
    four_bits = rule.weight.high - rule.weight.low < 16
    codes = ranges = 0
    for width, outputs in quantized_layers(model, rule).values():
        codes += outputs * ((width + 1) // 2) if four_bits else outputs * width
        ranges += range_count(rule.weight, width, outputs)
    unquantized = sum(value.nbytes for value in quantized.unquantized_parameters().values())
    verdict.observe("bytes", quantized.stored_bytes())
    derivation = {"codes": codes, "ranges": ranges, "kept": unquantized, "method": "16 bytes a range, 64 a layer"}
    most = codes + unquantized + 16 * ranges + 64 * len(quantized_layers(model, rule))
    verdict.within(quantized.stored_bytes(), Bound(most, derivation), "bytes of the model", "too-many-bytes")
    verdict.holds(
        quantized.stored_bytes() >= codes + unquantized, "all is counted", quantized.stored_bytes(), codes + unquantized
    )


def range_count(rule: QuantRule, width: int, outputs: int) -> int:
    """Return the number of ranges of a weight."""
    if rule.axis is None:
        return 1
    length, count = (width, outputs) if rule.axis == 0 else (outputs, width)
    return count * -(-length // (rule.group or length))


@clause("quantization.zeros")
@TECHNIQUE
def test_zero_inputs_give_bias(subject: Subject, verdict: Verdict, technique: str) -> None:
    """The inputs are a row of zeros, alone and among others; the weight has a column of zeros."""
    rule = rule_of(subject, technique)
    model = make_mixed_model(rule)
    weights = unlike_weights(model)
    weights["0.weight"][:, 4] = 0.0
    quantized = subject.framework.rule(PostTraining).quantize(technique, model, weights, batches(model))
    inputs = input_values(rule, quantized, "0.weight", ROWS, 160, 2)
    inputs[3] = 0.0
    calibrated = quantized.calibrated_ranges().get("0.weight")
    for rows in (inputs, np.zeros((2, 160), np.float32)):
        results = quantized.layer("0.weight", rows)
        wanted = np.broadcast_to(weights["0.bias"], results.shape).astype(np.float64)
        step = 0.0
        if rule.outputs is not None and calibrated is not None and calibrated.outputs is not None:
            code_range = calibrated.outputs
            codes = formats.codes(wanted / code_range.scale, np.array(float(code_range.zero_point)), rule.outputs)
            wanted, step = (codes - code_range.zero_point) * code_range.scale, code_range.scale
        zero = ~rows.any(axis=1)
        errors = np.concatenate([np.abs(results - wanted)[zero].ravel(), np.abs(results - wanted)[:, 4]])
        allowed = Bound(4 * formats.U * float(np.abs(wanted).max()) + 1e-3 * step, {"method": "roundings of the bias"})
        verdict.within(float(errors.max()), allowed, "distance from the bias", "zeros-differ")


@clause("quantization.accuracy")
@TECHNIQUE
def test_quantized_model_keeps_accuracy(subject: Subject, verdict: Verdict, technique: str) -> None:
    rule = rule_of(subject, technique)
    model = digits_mlp((max(64, -(-rule.smallest // 64)), 64))
    trainer = subject.trainer(model, Recipe(Adam(1e-3)))
    for start in range(0, 60 * 64, 64):
        trainer.update((digits_batch(64, start % 1344),))
    test, weights = digits_batch(397, 1400), trainer.parameters()
    labels = test.targets["output"]
    calibration = tuple(digits_batch(64, start).inputs for start in range(0, 256, 64))
    quantized = subject.framework.rule(PostTraining).quantize(technique, model, weights, calibration)
    outputs = expected.layer_inputs_and_outputs(model, weights, (test.inputs,))[
        f"{len(model.layers) - 1}.output.weight"
    ][1]
    predicted = quantized.predict(test.inputs)["output"]
    float_share, share = (float(np.mean(o.argmax(-1) == labels)) for o in (outputs, predicted))
    chance = 3.0 * float(np.sqrt(np.count_nonzero(outputs.argmax(-1) != predicted.argmax(-1)))) / len(labels)
    verdict.observe("accuracy", {"float32": float_share, technique: share})
    verdict.holds(float_share > 0.85, "the float model learns", float_share, "> 0.85", "did-not-learn")
    most = 0.03 if rule.weight.high - rule.weight.low < 16 else 0.01
    method = "1 point for eight bits, 3 for four, and three standard deviations of the sum of the answers that changed"
    derivation = {"method": method, "chance": chance, "source": "arXiv:1806.08342, section 4"}
    verdict.within(float_share - share, Bound(most + chance, derivation), "accuracy that is lost", "accuracy-lost")
    verdict.differs({"output": predicted}, {"output": outputs.astype(np.float32)}, "outputs")
