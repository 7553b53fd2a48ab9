"""Keras' updates on TensorFlow, for attempts and measured settings."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from frameworks.tf.core.steps import compiled


class TapeBackend:
    """Updates by `Optimizer.apply`, run as a mode runs functions."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""

        def step() -> None:
            optimizer.apply([tf.constant(g, tf.float32) for g in gradients], weights)

        compiled(step, self._mode)()
