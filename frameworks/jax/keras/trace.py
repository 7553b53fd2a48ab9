"""What a pass shows of its layers: their outputs, and the gradients for zeros that are added to these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import jax
import keras

Outputs = dict[str, jax.Array]
"""What layers returned, by the name of the Keras layer, in the order in which they were done."""


@dataclass(frozen=True)
class Watch:
    """What is gathered of a pass, and what is added to it.

    Attributes:
        zeros: what is added to the layers' outputs, by the name of the Keras layer.
        outputs: what the layers returned, with it.
    """

    zeros: Mapping[str, jax.Array]
    outputs: Outputs = field(default_factory=dict)


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(zeros: Mapping[str, jax.Array]) -> Iterator[Outputs]:
    """Gathers what every layer that runs inside returns."""
    watch = Watch(zeros)
    token = _WATCH.set(watch)
    try:
        yield watch.outputs
    finally:
        _WATCH.reset(token)


def run_layer(layer: keras.layers.Layer, x: jax.Array, **training: bool) -> jax.Array:
    """One layer of the model, whose output is gathered where outputs are asked for."""
    output = layer(x, **training)
    if (watch := _WATCH.get()) is not None:
        output = output + watch.zeros[layer.name] if layer.name in watch.zeros else output
        watch.outputs[layer.name] = output
    return output
