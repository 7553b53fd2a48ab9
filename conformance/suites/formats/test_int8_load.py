"""Models loaded in 8 bits: outlier columns, casts of weights, distance from float32."""

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause
from conformance.techniques import post_training
from conformance.techniques.post_training import check_layer, check_near, check_weights, rule_of, unlike_weights
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Head, Heads, Model
from frameworks.contract import LinearRule, PostTraining, QuantizedModel

TECHNIQUE = "load-int8"
WIDTH, ROWS = 96, 8
LAYERS = (Dense(64), Activation("relu"), Heads((Head("output", 5),)))
MODEL = Model("loaded", LAYERS, (WIDTH,), (("output", "squared_error"),))
FIRST = "0.weight"
each_case = pytest.mark.parametrize("case", post_training.CASES)


def load_int8_model(subject: Subject, weights: dict[str, Array]) -> QuantizedModel:
    """Return the model with these weights in 8 bits."""
    return subject.framework.rule(PostTraining).quantize(TECHNIQUE, MODEL, weights)


def inputs_of(rule: LinearRule, verdict: Verdict, case: str) -> Array:
    """Return an input matrix with outliers for the first layer; abstain if the outliers make ranges uncertain."""
    if rule.inputs is not None and not np.isfinite(rule.outliers):
        verdict.abstain("inputs have codes and no column is declared to be left out")
    return post_training.CASES[case](ROWS, WIDTH, rule, 1)


@clause("quantization.int8-load")
@each_case
def test_outlier_columns_are_not_quantized(subject: Subject, verdict: Verdict, case: str) -> None:
    rule = rule_of(subject, TECHNIQUE)
    inputs, weights = inputs_of(rule, verdict, case), unlike_weights(MODEL)
    check_layer(verdict, rule, load_int8_model(subject, weights), FIRST, inputs, weights["0.bias"])


@clause("quantization.int8-load")
@each_case
def test_int8_layer_is_near_float32(subject: Subject, verdict: Verdict, case: str) -> None:
    rule = rule_of(subject, TECHNIQUE)
    inputs, weights = inputs_of(rule, verdict, case), unlike_weights(MODEL)
    exact, bound = post_training.from_float(inputs, weights[FIRST], weights["0.bias"], rule)
    measured = load_int8_model(subject, weights).layer(FIRST, inputs)
    check_near(verdict, measured, exact, bound, "the layer, against float32", "far-from-float")


@clause("quantization.int8-load")
def test_outliers_of_earlier_call_have_no_effect(subject: Subject, verdict: Verdict) -> None:
    rule = rule_of(subject, TECHNIQUE)
    weights = unlike_weights(MODEL)
    used = load_int8_model(subject, weights)
    for case in ("one", "all"):
        used.layer(FIRST, inputs_of(rule, verdict, case))
    check_layer(verdict, rule, used, FIRST, inputs_of(rule, verdict, "none"), weights["0.bias"])


@clause("quantization.int8-load")
def test_weight_codes_match_cast_weights(subject: Subject, verdict: Verdict) -> None:
    """Columns reach down to float16's smallest subnormal numbers; their largest values lie between float16 numbers."""
    rule = rule_of(subject, TECHNIQUE)
    weights = unlike_weights(MODEL)
    weights[FIRST] *= np.float32(2.0) ** -(np.arange(64, dtype=np.float32) % 24)
    weights[FIRST][7] = np.abs(weights[FIRST]).max(axis=0) * np.float32(1.0 + 2.0**-7 + 2.0**-11)
    check_weights(verdict, load_int8_model(subject, weights), rule, weights)


@clause("quantization.int8-load")
def test_int8_weights_take_a_quarter_of_the_bytes(subject: Subject, verdict: Verdict) -> None:
    rule_of(subject, TECHNIQUE)
    weights = unlike_weights(MODEL)
    quantized = load_int8_model(subject, weights)
    rest = sum(value.nbytes for value in quantized.unquantized_parameters().values())
    shapes = [weights[name].shape for name, stored in quantized.weights().items() if stored is not None]
    quarter, outputs = sum(rows * columns for rows, columns in shapes), sum(columns for _, columns in shapes)
    derivation = {"method": "a quarter of float32, 16 bytes an output, 64 a layer", "quarter": quarter, "rest": rest}
    most = Bound(quarter + 16 * outputs + 64 * len(shapes) + rest, derivation)
    verdict.within(quantized.stored_bytes(), most, "bytes of the model", "too-many-bytes")
    verdict.holds(bool(shapes), "some layer has codes", len(shapes), "> 0", "no-codes")
