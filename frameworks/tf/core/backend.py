"""Keras' updates and gradients on TensorFlow, for attempts and measured settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from frameworks.tf.core.steps import compiled


class TapeBackend:
    """Updates by `Optimizer.apply` and gradients by a tape, run as a mode runs functions."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def apply(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[float | None],
        weights: Sequence[keras.Variable],
    ) -> None:
        """One update of scalar weights by these gradients."""

        def step() -> None:
            optimizer.apply([None if g is None else tf.constant(g, tf.float32) for g in gradients], weights)

        compiled(step, self._mode)()

    def gradient(self, function: Callable[[tf.Tensor], tf.Tensor], at: float) -> float:
        """The derivative of a scalar function."""

        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = function(x)
            return tape.gradient(value, x)

        return float(compiled(step, self._mode)(tf.constant(at)))
