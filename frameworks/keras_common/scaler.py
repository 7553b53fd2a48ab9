"""Keras' loss scaling: the optimizer around another, its state and its settings."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import DynamicScaling
from frameworks.keras_common.backend import KerasBackend, number, scalars

GROWTH, BACKOFF = 2.0, 0.5
"""Factors that are written into `LossScaleOptimizer`; its documentation says doubled and halved."""


def has_factors_of(scaling: DynamicScaling) -> bool:
    """Whether `LossScaleOptimizer` has the factors that a recipe asks for."""
    return scaling.growth in (None, GROWTH) and scaling.backoff in (None, BACKOFF)


def loss_scaled(optimizer: keras.optimizers.Optimizer, scaling: DynamicScaling) -> keras.optimizers.LossScaleOptimizer:
    """The optimizer inside a `LossScaleOptimizer`; what the recipe leaves None is left to Keras."""
    given = {"initial_scale": scaling.initial, "dynamic_growth_steps": scaling.interval}
    return keras.optimizers.LossScaleOptimizer(optimizer, **{name: v for name, v in given.items() if v is not None})


def is_dynamic(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the scale of losses moves."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def inner_of(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer without its loss scaling."""
    return optimizer.inner_optimizer if is_dynamic(optimizer) else optimizer


def scaler_state(optimizer: keras.optimizers.Optimizer, read: Callable[[Any], Array]) -> dict[str, Array]:
    """ "scale" and, where it moves, "good_steps"; empty without scaling. `read`: the value of one of its variables."""
    if is_dynamic(optimizer):
        return {"scale": read(optimizer.dynamic_scale), "good_steps": read(optimizer.step_counter)}
    constant = optimizer.loss_scale_factor
    return {} if constant is None else {"scale": np.array(constant, np.float32)}


def scaler_settings(optimizer: keras.optimizers.Optimizer, backend: KerasBackend) -> dict[str, float]:
    """What a dynamic loss scale was made with; empty for any other optimizer."""
    if not is_dynamic(optimizer):
        return {}
    growth, backoff = measured_factors(optimizer, backend)
    return {
        "initial": float(optimizer.initial_scale),
        "growth": growth,
        "backoff": backoff,
        "interval": float(optimizer.dynamic_growth_steps),
    }


def measured_factors(optimizer: keras.optimizers.LossScaleOptimizer, backend: KerasBackend) -> tuple[float, float]:
    """Growth and backoff factor, seen on a copy of the scaler: Keras has no attribute to read them from."""
    config = optimizer.get_config() | {"inner_optimizer": keras.optimizers.SGD(0.0), "dynamic_growth_steps": 1}
    scales = []
    for gradient in (0.0, np.inf):
        scaler, weights = keras.optimizers.LossScaleOptimizer(**(config | {"initial_scale": 1.0})), scalars(1)
        scaler.build(weights)
        backend.apply(scaler, [gradient], weights)
        scales.append(number(scaler.dynamic_scale))
    growth, backoff = scales
    return growth, backoff
