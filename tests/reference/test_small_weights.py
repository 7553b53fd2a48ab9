"""Rules by which small weights stay as they are: what layers of either kind are asked, and which models are drawn."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.checks.evidence import Verdict, Violation
from conformance.techniques.post_training.cases import QuantizedCase, RunLayers
from conformance.techniques.post_training.checks import check_dense, quantized_layers, small_layers, unlike_weights
from conformance.techniques.post_training.mixed_models import MIXED, foreign, mixed
from conformance.techniques.quantized_models import large_enough
from fixtures.layers import Activation, Dense, Flatten, Head, Heads, Layer
from fixtures.model import Model, dense_weights
from frameworks.contract import LinearRule
from frameworks.reference.quantization.post_training import RULES, ReferenceQuantizedModel

FEWEST = 1024
RULE = replace(RULES["dynamic-int8"], smallest=FEWEST)
SIZES = {"0.weight": (32, 33), "2.weight": (33, 31), "4.output.weight": (31, 33), "4.other.weight": (31, 34)}
LAYERS = (Dense(33), Activation("relu"), Dense(31), Activation("tanh"), Heads((Head("output", 33), Head("other", 34))))
MODEL = Model("sizes", LAYERS, (32,), (("output", "squared_error"), ("other", "squared_error")))


def test_quantized_and_small_layers_follow_sizes_and_heads() -> None:
    assert dense_weights(MODEL) == SIZES
    assert sorted(quantized_layers(MODEL, replace(RULE, smallest=31 * 33))) == sorted(SIZES)
    assert sorted(small_layers(MODEL, replace(RULE, smallest=31 * 33 + 1))) == ["2.weight", "4.output.weight"]
    without_heads = replace(RULE, heads=False)
    assert list(quantized_layers(MODEL, without_heads)) == ["0.weight"]
    assert sorted(small_layers(MODEL, without_heads)) == ["2.weight", "4.output.weight"]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("made_by", [RULE, RULES["dynamic-int8"], replace(RULE, smallest=10**6)])
def test_check_dense_finds_a_layer_of_the_wrong_rule(name: str, made_by: LinearRule) -> None:
    """A twin that quantizes small layers, or leaves large ones, is found at exactly those."""
    weights = unlike_weights(MODEL)
    model = ReferenceQuantizedModel(made_by, MODEL, weights)
    wrong = (np.prod(SIZES[name]) >= made_by.smallest) != (np.prod(SIZES[name]) >= FEWEST)
    if wrong:
        with pytest.raises((Violation, AssertionError)):
            check_dense(Verdict(), RULE, model, name, 5, 1, weights)
    else:
        check_dense(Verdict(), RULE, model, name, 5, 1, weights)


@pytest.mark.parametrize("fewest", [1, 33, 1024, 1000, 5000])
def test_the_model_of_the_suite_has_codes_and_a_layer_without(fewest: int) -> None:
    assert mixed(RULES["dynamic-int8"]) is MIXED
    rule = replace(RULE, smallest=fewest)
    model = mixed(rule)
    quantized = quantized_layers(model, rule)
    assert {"0.weight", "3.weight", "5.output.weight"} <= set(quantized)
    if fewest >= 64:
        assert list(small_layers(model, rule)) == ["5.small.weight"]
    if fewest == FEWEST:
        assert np.prod(quantized["5.output.weight"]) == fewest


@pytest.mark.parametrize("model", [MIXED, mixed(RULE)], ids=["usual", "large"])
def test_foreign_model_has_another_shape_or_head(model: Model) -> None:
    before = dense_weights(model)
    changed = {how: dense_weights(foreign(model, how)) for how in ("other-shape", "other-head")}
    assert {n for n in before if before[n] != changed["other-shape"][n]} == {"0.weight", "3.weight"}
    assert [n for n in before if before[n] != changed["other-head"][n]] == ["5.output.weight"]


@pytest.mark.parametrize(
    ("sample", "layers", "first"),
    [((2,), (Dense(3), Activation("relu")), "0.weight"), ((3, 5), (Flatten(), Dense(8, bias=False)), "1.weight")],
    ids=["rows", "matrices"],
)
def test_large_enough_model_has_codes(sample: tuple[int, ...], layers: tuple[Layer, ...], first: str) -> None:
    model = Model("drawn", (*layers, Heads((Head("a", 2),))), sample, (("a", "squared_error"),))
    assert large_enough(model, 0) is model
    larger = large_enough(model, FEWEST)
    assert first in quantized_layers(larger, RULE)
    assert [type(layer) for layer in larger.layers] == [type(layer) for layer in model.layers]
    assert large_enough(larger, FEWEST) is larger


@pytest.mark.parametrize(
    ("layers", "there"),
    [
        ((Dense(3), Activation("relu")), False),
        ((Dense(3),), True),
        ((Dense(3, bias=False),), False),
        ((Dense(3), Dense(4, bias=False), Activation("tanh")), True),
    ],
)
def test_words_of_a_case_name_a_bias_before_a_dense_layer(layers: tuple[Layer, ...], there: bool) -> None:
    model = Model("drawn", (*layers, Heads((Head("a", 2),))), (2,), (("a", "squared_error"),))
    case = QuantizedCase("dynamic-int8", model, (), 0, (1,), (RunLayers(1, 0),), 0)
    assert ("quantized=bias-before-dense" in case.words()) is there
