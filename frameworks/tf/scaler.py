"""Keras' loss scaling: the optimizer around another, its state and its settings."""

from __future__ import annotations

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import DynamicScaling
from frameworks.tf.arrays import as_array

GROWTH, BACKOFF = 2.0, 0.5
"""Factors that are written into `LossScaleOptimizer`; its documentation says doubled and halved."""


def has_factors_of(scaling: DynamicScaling) -> bool:
    """Whether `LossScaleOptimizer` has the factors that a recipe asks for."""
    return scaling.growth in (None, GROWTH) and scaling.backoff in (None, BACKOFF)


def loss_scaled(optimizer: keras.optimizers.Optimizer, scaling: DynamicScaling) -> keras.optimizers.LossScaleOptimizer:
    """The optimizer inside a `LossScaleOptimizer`; what the recipe leaves None is left to Keras."""
    given = {"initial_scale": scaling.initial, "dynamic_growth_steps": scaling.interval}
    return keras.optimizers.LossScaleOptimizer(optimizer, **{name: v for name, v in given.items() if v is not None})


def inner_of(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer without its loss scaling."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def scaler_state(optimizer: keras.optimizers.Optimizer) -> dict[str, Array]:
    """ "scale" and, where it moves, "good_steps"; empty without scaling."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return {"scale": as_array(optimizer.dynamic_scale), "good_steps": as_array(optimizer.step_counter)}
    constant = optimizer.loss_scale_factor
    return {} if constant is None else {"scale": np.array(constant, np.float32)}


def scaler_settings(optimizer: keras.optimizers.Optimizer) -> dict[str, float]:
    """What a dynamic loss scale was made with; empty for any other optimizer."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return {}
    growth, backoff = measured_factors(optimizer)
    return {
        "initial": float(optimizer.initial_scale),
        "growth": growth,
        "backoff": backoff,
        "interval": float(optimizer.dynamic_growth_steps),
    }


def measured_factors(optimizer: keras.optimizers.LossScaleOptimizer) -> tuple[float, float]:
    """Growth and backoff factor, seen on a copy of the scaler: Keras has no attribute to read them from."""
    config = optimizer.get_config() | {"inner_optimizer": keras.optimizers.SGD(0.0), "dynamic_growth_steps": 1}
    weight = keras.Variable(np.zeros((), np.float32))
    seen: list[float] = []
    for gradient in (0.0, np.inf):
        copy = keras.optimizers.LossScaleOptimizer(**(config | {"initial_scale": 1.0}))
        copy.apply([keras.ops.convert_to_tensor(np.float32(gradient))], [weight])
        seen.append(float(copy.dynamic_scale))
    return seen[0], seen[1]
