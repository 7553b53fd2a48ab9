"""Quantized models: outliers of inputs, certain codes, and how far ranges of calibration may be off."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.techniques.formats.checks import scale_of
from conformance.techniques.post_training import expected_models
from conformance.techniques.post_training.expected_models import cast, outlying, ranged
from fixtures.model import Dense, Head, Heads, LayerNorm, Model
from frameworks.reference.quantization.post_training import RULES

ROWS, WIDTH = 8, 96
COLUMNS = RULES["load-int8"]
VALUES = replace(COLUMNS, without="values")
OUTLYING = {"none": [], "below": [], "at": [20], "one": [20], "negative": [20], "all": list(range(WIDTH))}
each_case = pytest.mark.parametrize("case", expected_models.CASES)


@each_case
@pytest.mark.parametrize("seed", range(5))
def test_the_columns_of_a_case_have_outliers(case: str, seed: int) -> None:
    inputs = expected_models.CASES[case](ROWS, WIDTH, COLUMNS, seed)
    assert inputs.shape == (ROWS, WIDTH)
    assert np.flatnonzero(outlying(inputs, COLUMNS)).tolist() == OUTLYING[case]


@each_case
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", [COLUMNS, VALUES], ids=["columns", "values"])
def test_no_code_is_near_to_another(rule, case: str, seed: int) -> None:  # type: ignore[no-untyped-def]
    inputs = expected_models.CASES[case](ROWS, WIDTH, rule, seed)
    coded = cast(inputs, rule)[:, ~outlying(inputs, rule)].astype(np.float64)
    scale = scale_of(ranged(inputs, rule), rule.inputs)[:, :1]
    assert np.abs(coded / scale - np.floor(coded / scale) - 0.5).min(initial=1.0) > 0.01
    assert np.abs(coded / scale).max(initial=0.0) < 127.5


@pytest.mark.parametrize("case", ["at", "one", "negative"])
def test_a_range_of_whole_columns_is_another_one(case: str) -> None:
    inputs = expected_models.CASES[case](ROWS, WIDTH, COLUMNS, 0)
    columns, values = (scale_of(ranged(inputs, rule), COLUMNS.inputs)[:, 0] for rule in (COLUMNS, VALUES))
    assert np.allclose(np.delete(values / columns, ROWS // 2), 3.0)


def test_the_largest_value_below_the_threshold_has_both_signs() -> None:
    inputs = expected_models.CASES["below"](ROWS, WIDTH, COLUMNS, 0)
    assert inputs.max() == -inputs.min() == 5.99609375


def test_the_bound_is_that_of_half_a_code_and_a_cast() -> None:
    """An input of 1 and a weight of 1 in a column whose largest is 127: half a code each, and no cast."""
    weight = np.array([[1.0], [127.0]], np.float32)
    inputs = np.array([[1.0, 0.0]], np.float32)
    exact, bound = expected_models.from_float(inputs, weight, np.zeros(1, np.float32), replace(COLUMNS, inputs=None))
    assert exact.tolist() == [[1.0]]
    assert 0.5 <= bound[0, 0] < 0.5 + 1e-5


NORMED = Model("normed", (Dense(2, bias=False), LayerNorm(), Heads((Head("a", 2),))), (2,), (("a", "squared_error"),))


@pytest.mark.parametrize(("row", "magnified"), [([1.0, -3.0], False), ([1000.0, 1000.002], True)])
def test_a_norm_of_values_that_are_nearly_equal_magnifies_what_they_are_off(row: list[float], magnified: bool) -> None:
    weights = {name: np.zeros(shape, np.float32) for name, shape in NORMED.parameter_shapes().items()}
    weights |= {"0.weight": np.eye(2, dtype=np.float32), "1.scale": np.ones(2, np.float32)}
    weights |= {"2.a.weight": np.eye(2, dtype=np.float32)}
    batches = (np.array([row]),)
    by_layer = expected_models.layer_inputs_and_outputs(NORMED, weights, batches)
    times = expected_models.conditions(NORMED, weights, batches, by_layer)
    assert times["0.weight"] == pytest.approx(1.0, abs=0.5)
    assert (times["2.a.weight"] > 1e4) == magnified
