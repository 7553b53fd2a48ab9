"""How far ranges of calibration may be off, where what a model computes magnifies the rounding of its inputs."""

import numpy as np
import pytest

from conformance.techniques.post_training import expected_models
from fixtures.layers import Dense, Head, Heads, LayerNorm
from fixtures.model import Model

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
