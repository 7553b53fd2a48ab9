"""Attempts of models whose layers share weights or are a user's own: the gradient of one weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from fixtures.arrays import Array
from fixtures.functions import FunctionUse
from fixtures.layers import Again, Dense, Embedding, Flatten, Head, Heads, Layer, UserFunction
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability


class DifferentiatedRun(Protocol):
    """The method of a run that is used here."""

    def gradients(self, window: Window) -> dict[str, Array]: ...


Make = Callable[[Model, Recipe, Mapping[str, Array]], DifferentiatedRun]
"""Creates a run from these weights without the adapter's guards."""

_DENSE = Dense(1, bias=False)
_HEAD = Head("output", 1)
_CASES: Mapping[Capability, tuple[tuple[Layer, ...], float]] = {
    Capability.LAYER_REUSE: ((_DENSE, Again(_DENSE, 0), Heads((_HEAD,))), 32.0),
    Capability.TIED_WEIGHTS: ((Embedding(1, 1), Flatten(), Heads((Head("output", 1, tied=0),))), 32.0),
    Capability.USER_FUNCTION: ((_DENSE, UserFunction(), Heads((_HEAD,))), 8.0),
}
"""Layers whose first weight is 2, and the gradient of the square of their output for an input of 1 or id 0."""


def structure_attempts(run: Make) -> dict[Capability, Attempt]:
    """Attempts for layers that are used twice, tied weights and functions of the user's."""
    return {capability: partial(_differentiates, run, *case) for capability, case in _CASES.items()}


def _differentiates(run: Make, layers: tuple[Layer, ...], expected: float) -> bool:
    ids = isinstance(layers[0], Embedding)
    model = Model("one-weight", layers, (1,), (("output", "squared_error"),), integer_inputs=ids)
    shapes = model.parameter_shapes()
    weights = {name: np.full(shape, float(not name.endswith("bias")), np.float32) for name, shape in shapes.items()}
    weights["0.weight"] *= 2.0
    inputs = np.zeros((1, 1), np.int64) if ids else np.ones((1, 1), np.float32)
    gradients = run(model, Recipe(), weights).gradients((Batch(inputs, {"output": np.zeros((1, 1), np.float32)}),))
    return float(gradients["0.weight"].item()) == expected


def uses_function(used: Callable[..., Any]) -> bool:
    """Whether the gradients of an operation with three inputs are those that its backward pass returns."""
    one = np.ones(1, np.float32)
    gradients = used(FunctionUse((True, True, False)), (one, one, one), None).gradients
    return [None if each is None else each.tolist() for each in gradients] == [[8.0], [5.0], None]
