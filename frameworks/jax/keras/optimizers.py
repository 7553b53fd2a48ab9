"""Keras optimizers on JAX: names of variables, and joint clipping."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import keras
import numpy as np

from fixtures.recipe import Recipe
from frameworks.keras_parts import optimizers

ACCUMULATOR, AVERAGE = "gradient_accumulator/", "average/"


def make_optimizer(recipe: Recipe, variables: Mapping[str, keras.Variable]) -> keras.optimizers.Optimizer:
    """The recipe's optimizer for the variables.

    Raises:
        Unsupported: GROUPS or TWO_OPTIMIZERS, together with a clip.
    """
    return optimizers.make_optimizer(recipe, variables, clips_together, name="optimizer")


def clips_together() -> bool:
    """Whether two optimizers in a `MultiOptimizer` clip by the global norm of all gradients."""
    for inside, around in (({"global_clipnorm": 1.0}, {}), ({}, {"global_clipnorm": 1.0})):
        weights = [keras.Variable(np.zeros((), np.float32), name=name) for name in "ab"]
        first, second = (keras.optimizers.SGD(1.0, **inside) for _ in weights)
        chosen = keras.optimizers.OptimizerMap(first, {weights[1].path: second})
        try:
            both = keras.optimizers.MultiOptimizer(chosen, **around)
        except TypeError:
            continue
        both.build(weights)
        values = [variable.value for variable in both.variables]
        after, _ = both.stateless_apply(values, [jnp.float32(3.0), jnp.float32(4.0)], [w.value for w in weights])
        if np.allclose(after, [-0.6, -0.8]):
            return True
    return False
