"""The settings of Keras' loss scaling on JAX."""

from __future__ import annotations

import keras
import numpy as np

from frameworks.keras_parts import scaler


def scaler_settings(optimizer: keras.optimizers.Optimizer) -> dict[str, float]:
    """The settings of a dynamic loss scale; empty for any other optimizer."""
    return scaler.scaler_settings(optimizer, _scale_after)


def _scale_after(optimizer: keras.optimizers.LossScaleOptimizer, weight: keras.Variable, gradient: float) -> float:
    optimizer.build([weight])
    values = [variable.value for variable in optimizer.variables]
    _, after = optimizer.stateless_apply(values, [np.float32(gradient)], [weight.value])
    (place,) = (i for i, variable in enumerate(optimizer.variables) if variable is optimizer.dynamic_scale)
    return float(after[place])
