"""What a pass shows of its layers: outputs gathered while they run, and what a tape gives for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import keras
import tensorflow as tf

Outputs = dict[str, tf.Tensor]
"""What layers returned, by the name of the Keras layer, in the order in which they were done."""

_COLLECTED: ContextVar[Outputs | None] = ContextVar("collected outputs", default=None)


@contextmanager
def collected_outputs() -> Iterator[Outputs]:
    """Gathers what every layer that runs inside returns, in graphs too; a subclassed model has no `layer.output`."""
    outputs: Outputs = {}
    token = _COLLECTED.set(outputs)
    try:
        yield outputs
    finally:
        _COLLECTED.reset(token)


def run_layer(layer: keras.layers.Layer, x: tf.Tensor, **training: bool) -> tf.Tensor:
    """One layer of the model, whose output is gathered where outputs are asked for."""
    output = layer(x, **training)
    if (outputs := _COLLECTED.get()) is not None:
        outputs[layer.name] = output
    return output


@dataclass(frozen=True)
class Traced:
    """One pass from inside.

    Attributes:
        outputs: of every layer, by the name of the Keras layer.
        gradients: of the scaled loss for these outputs.
        parameters: what `Steps.gradients` gives.
        scale: the loss scale.
    """

    outputs: dict[str, tf.Tensor]
    gradients: dict[str, tf.Tensor]
    parameters: dict[str, tf.Tensor]
    scale: tf.Tensor
