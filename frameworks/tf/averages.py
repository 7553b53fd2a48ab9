"""Evaluation with Keras' moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def evaluated_on_average(network: keras.Model, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """`SwapEMAWeights` around an evaluation, as `Model.predict` calls it."""
    if getattr(network, "optimizer", None) is not optimizer:
        network.compile(optimizer=optimizer)
    swap = keras.callbacks.SwapEMAWeights()
    swap.set_model(network)
    swap.on_predict_begin()
    try:
        yield
    finally:
        swap.on_predict_end()
