"""What adapters show of a pass: which layers, in which formats, and where they show nothing."""

import numpy as np
import pytest

from fixtures.data import digits_batch
from fixtures.model import Batch
from fixtures.models import digits_mlp, dropout_probe, two_heads
from fixtures.recipe import Recipe, Recompute
from frameworks import registry
from frameworks.base import has_effect, traced_paths, unscaled_in_trace
from frameworks.contract import Framework, Unsupported
from frameworks.registry import adapter_file


@pytest.fixture(params=[*registry.built_in()])
def framework(request: pytest.FixtureRequest) -> Framework:
    for module in adapter_file(request.param).imports[:1]:
        pytest.importorskip(module)
    return registry.load(request.param, "cpu")


def test_a_head_without_targets_is_not_shown() -> None:
    inputs, target = np.zeros((2, 8), np.float32), np.zeros((2, 2), np.float32)
    assert traced_paths(two_heads(), Batch(inputs, {"b": target})) == ("0", "1.b")
    assert traced_paths(two_heads(), Batch(inputs, {"a": target, "b": target})) == ("0", "1.a", "1.b")


def test_a_scale_is_divided_out_before_it_can_underflow() -> None:
    smallest = np.array([2.0**-24], np.float16)
    divided = unscaled_in_trace(smallest, 256.0)
    assert divided.dtype == np.float32
    assert divided[0] == 2.0**-32
    assert unscaled_in_trace(smallest, 1.0).dtype == np.float16
    assert unscaled_in_trace(smallest.astype(np.float64), 256.0).dtype == np.float64


def test_layers_before_the_first_parameter_are_shown(framework: Framework) -> None:
    """The gradient at the output of dropout is that of the head's input: the same for every kept value."""
    model, inputs = dropout_probe(), np.ones((2, 64), np.float32)
    trace = framework.trainer(model, Recipe()).trace(Batch(inputs, {"output": np.zeros((2, 1), np.float32)}))
    head = trace.gradients["1.output"].astype(np.float64)
    assert head.all()
    np.testing.assert_allclose(trace.gradients["0"], np.repeat(head, 64, axis=1), rtol=1e-6)


def test_recomputed_layers_are_the_same_or_refused_after_a_try(framework: Framework) -> None:
    model, batch = digits_mlp((16, 8), "tanh"), digits_batch(4)
    plain = framework.trainer(model, Recipe()).trace(batch)
    refusal: Unsupported | None = None
    try:
        trace = framework.trainer(model, Recipe(recompute=Recompute(segments=2))).trace(batch)
    except Unsupported as error:
        refusal = error
    if refusal is not None:
        assert refusal.attempt is not None
        assert not has_effect(refusal.attempt)
        return
    assert list(trace.outputs) == list(plain.outputs) == list(trace.gradients)
    for path, gradient in plain.gradients.items():
        np.testing.assert_allclose(trace.gradients[path], gradient, rtol=1e-3, atol=1e-6, err_msg=path)
