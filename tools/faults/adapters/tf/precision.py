"""Faults of autocast, master weights and the formats of optimizers in TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from frameworks.tf import TensorFlowFramework, framework
from frameworks.tf.core import steps
from tools.faults import fault


@fault(
    "https://github.com/keras-team/keras/issues/15806",
    "autocast.matmul-is-low",
    "autocast.backward-in-forward-precision",
)
class LayersIgnoreThePolicy(TensorFlowFramework):
    """Layers are made under the policy float32, whatever global policy was set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.config.set_dtype_policy = lambda policy: None


@fault("https://github.com/keras-team/keras/pull/20014", "autocast.policy-does-not-leak")
class PolicyReachesLosses(TensorFlowFramework):
    """Losses are computed in the format that the global policy gives to layers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = steps.TracedSteps.__init__

        def leaking(self: steps.TracedSteps, model: Any, bound: Any, *rest: Any) -> None:
            make(self, model, bound, *rest)
            for (head, _), loss in self._losses.items():
                loss._dtype = bound.network.heads[head].compute_dtype

        steps.TracedSteps.__init__ = leaking


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "autocast.scope-restored")
class PolicyOutlivesItsScope(TensorFlowFramework):
    """An exception leaves the global policy as it was inside the scope."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        @contextmanager
        def careless(name: str) -> Iterator[None]:
            former = keras.config.dtype_policy()
            keras.config.set_dtype_policy(name)
            yield
            keras.config.set_dtype_policy(former)

        framework.dtype_policy = careless


@fault("https://github.com/tensorflow/tensorflow/issues/47156", "autocast.norm-layers-are-wide")
class NormalisesInLowPrecision(TensorFlowFramework):
    """Layer normalisation takes mean and mean square in the format of its input, where the square overflows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def narrow(self: Any, x: tf.Tensor) -> tf.Tensor:
            mean = tf.reduce_mean(x, -1, keepdims=True)
            variance = tf.reduce_mean(x * x, -1, keepdims=True) - mean * mean
            return (x - mean) * tf.math.rsqrt(variance + tf.cast(self.epsilon, x.dtype))

        keras.layers.LayerNormalization.call = narrow


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonUnderflows(TensorFlowFramework):
    """Adam's epsilon is rounded to 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = keras.optimizers.Adam.__init__

        def rounded(self: Any, *given: Any, epsilon: float = 0.0, **named: Any) -> None:
            make(self, *given, epsilon=epsilon * 0.0, **named)

        keras.optimizers.Adam.__init__ = rounded
