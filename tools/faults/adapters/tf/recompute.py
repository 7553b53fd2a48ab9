"""Faults of recomputation in TensorFlow and Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from frameworks.tf import TensorFlowFramework
from tools.faults import fault


@fault("https://github.com/jax-ml/jax/pull/37888", "recompute.runs-forward-once-more")
class RematDoesNothing(TensorFlowFramework):
    """`keras.remat` gives its function back as it is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.remat = lambda function: function


@fault("https://github.com/huggingface/transformers/issues/21381", "recompute.no-grad-input")
class VariablesGetNoGradient(TensorFlowFramework):
    """`tf.recompute_grad` differentiates by the arguments only, not by the variables that its function uses."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def cut(function: Any) -> Any:
            @tf.custom_gradient
            def recomputed(*given: tf.Tensor) -> Any:
                def gradient(upstream: tf.Tensor, variables: Any = ()) -> Any:
                    with tf.GradientTape() as tape:
                        tape.watch(given)
                        again = function(*given)
                    return list(tape.gradient(again, given, upstream)), [None] * len(variables)

                return function(*given), gradient

            return recomputed

        tf.recompute_grad = cut
