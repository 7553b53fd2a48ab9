"""Faults of layers in TensorFlow and Keras."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from frameworks.tf import TensorFlowFramework
from tools.faults import fault


@fault("https://github.com/tensorflow/tensorflow/pull/58863", "autocast.float32-parity", names="(LayerNorm), output")
class NormalisesWithAnotherEpsilon(TensorFlowFramework):
    """Layer normalisation adds a hundred times the epsilon that it was given."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = keras.layers.LayerNormalization.__init__

        def larger(self: Any, *given: Any, epsilon: float, **named: Any) -> None:
            make(self, *given, epsilon=100.0 * epsilon, **named)

        keras.layers.LayerNormalization.__init__ = larger


@fault(
    "https://github.com/lucidrains/vit-pytorch/issues/65", "autocast.float32-parity", names="(SelfAttention), output"
)
class AttentionScaledByAnotherWidth(TensorFlowFramework):
    """Products of queries and keys of width d are divided by √(d + 1)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = keras.layers.MultiHeadAttention.__init__

        def narrower(self: Any, *given: Any, **named: Any) -> None:
            make(self, *given, **named)
            self._inverse_sqrt_key_dim = 1.0 / math.sqrt(self.key_dim + 1.0)

        keras.layers.MultiHeadAttention.__init__ = narrower


@tf.custom_gradient
def _turned_backwards(kernel: tf.Tensor) -> Any:
    """The kernel (height, width, inputs, filters), whose gradient comes with height and width exchanged."""
    return tf.identity(kernel), lambda upstream: tf.transpose(upstream, (1, 0, 2, 3))


@fault(
    "https://github.com/apple/tensorflow_macos/issues/230",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(TensorFlowFramework):
    """The gradient of a convolution's filter has its two spatial axes exchanged; the forward pass is right."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        convolve = keras.layers.Conv2D.convolution_op

        def turned(self: Any, inputs: tf.Tensor, kernel: Any) -> tf.Tensor:
            return convolve(self, inputs, _turned_backwards(tf.convert_to_tensor(kernel)))

        keras.layers.Conv2D.convolution_op = turned
