"""Inputs with outliers: which columns have one, and that the codes of all others are certain."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.techniques.formats.expected_codes import scale_of
from conformance.techniques.post_training import int8_load
from conformance.techniques.post_training.expected_models import cast, outlying, ranged
from frameworks.reference.quantization.post_training import RULES

ROWS, WIDTH = 8, 96
COLUMNS = RULES["load-int8"]
VALUES = replace(COLUMNS, without="values")
OUTLYING = {"none": [], "below": [], "at": [20], "one": [20], "negative": [20], "all": list(range(WIDTH))}
each_case = pytest.mark.parametrize("case", int8_load.CASES)


@each_case
@pytest.mark.parametrize("seed", range(5))
def test_the_columns_of_a_case_have_outliers(case: str, seed: int) -> None:
    inputs = int8_load.CASES[case](ROWS, WIDTH, COLUMNS, seed)
    assert inputs.shape == (ROWS, WIDTH)
    assert np.flatnonzero(outlying(inputs, COLUMNS)).tolist() == OUTLYING[case]


@each_case
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", [COLUMNS, VALUES], ids=["columns", "values"])
def test_no_code_is_near_to_another(rule, case: str, seed: int) -> None:  # type: ignore[no-untyped-def]
    inputs = int8_load.CASES[case](ROWS, WIDTH, rule, seed)
    coded = cast(inputs, rule)[:, ~outlying(inputs, rule)].astype(np.float64)
    scale = scale_of(ranged(inputs, rule), rule.inputs)[:, :1]
    assert np.abs(coded / scale - np.floor(coded / scale) - 0.5).min(initial=1.0) > 0.01
    assert np.abs(coded / scale).max(initial=0.0) < 127.5


@pytest.mark.parametrize("case", ["at", "one", "negative"])
def test_a_range_of_whole_columns_is_another_one(case: str) -> None:
    inputs = int8_load.CASES[case](ROWS, WIDTH, COLUMNS, 0)
    columns, values = (scale_of(ranged(inputs, rule), COLUMNS.inputs)[:, 0] for rule in (COLUMNS, VALUES))
    assert np.allclose(np.delete(values / columns, ROWS // 2), 3.0)


def test_the_largest_value_below_the_threshold_has_both_signs() -> None:
    inputs = int8_load.CASES["below"](ROWS, WIDTH, COLUMNS, 0)
    assert inputs.max() == -inputs.min() == 5.99609375


def test_the_bound_is_that_of_half_a_code_and_a_cast() -> None:
    """An input of 1 and a weight of 1 in a column whose largest is 127: half a code each, and no cast."""
    weight = np.array([[1.0], [127.0]], np.float32)
    inputs = np.array([[1.0, 0.0]], np.float32)
    exact, bound = int8_load.from_float(inputs, weight, np.zeros(1, np.float32), replace(COLUMNS, inputs=None))
    assert exact.tolist() == [[1.0]]
    assert 0.5 <= bound[0, 0] < 0.5 + 1e-5
