"""Evaluation with Keras' moving average of the weights."""

from __future__ import annotations

import keras
import numpy as np

from fixtures.arrays import Array


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
