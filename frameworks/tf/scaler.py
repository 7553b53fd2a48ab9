"""Keras' loss scaling on TensorFlow: its state and its settings."""

from __future__ import annotations

import keras
import numpy as np

from fixtures.arrays import Array
from frameworks.keras_parts import scaler
from frameworks.tf.arrays import as_array


def scaler_state(optimizer: keras.optimizers.Optimizer) -> dict[str, Array]:
    """ "scale" and, where it moves, "good_steps"; empty without scaling."""
    return scaler.scaler_state(optimizer, as_array)


def scaler_settings(optimizer: keras.optimizers.Optimizer) -> dict[str, float]:
    """The settings of a dynamic loss scale; empty for any other optimizer."""
    return scaler.scaler_settings(optimizer, _scale_after)


def _scale_after(optimizer: keras.optimizers.LossScaleOptimizer, weight: keras.Variable, gradient: float) -> float:
    optimizer.apply([keras.ops.convert_to_tensor(np.float32(gradient))], [weight])
    return float(optimizer.dynamic_scale)
