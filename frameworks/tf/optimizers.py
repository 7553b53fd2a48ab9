"""Keras optimizers on TensorFlow: joint clipping, and evaluation with the average of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.keras_parts import optimizers


def make_optimizer(recipe: Recipe, variables: Mapping[str, keras.Variable]) -> keras.optimizers.Optimizer:
    """The recipe's optimizer for the variables.

    Raises:
        Unsupported: GROUPS or TWO_OPTIMIZERS, together with a clip.
    """
    return optimizers.make_optimizer(recipe, variables, clips_together)


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
        both.apply([tf.constant(3.0), tf.constant(4.0)], weights)
        if np.allclose(weights, [-0.6, -0.8]):
            return True
    return False


def predict_on_average(
    network: keras.Model, optimizer: keras.optimizers.Optimizer, inputs: Array, mode: str
) -> dict[str, Array]:
    """`Model.predict` with the callback `SwapEMAWeights`, compiled as the mode runs functions."""
    if getattr(network, "optimizer", None) is not optimizer:
        network.compile(
            optimizer=optimizer, run_eagerly=mode == "eager", jit_compile=mode == "xla", auto_scale_loss=False
        )
    outputs = network.predict(inputs, batch_size=len(inputs), verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
    return {name: np.asarray(output) for name, output in outputs.items()}
