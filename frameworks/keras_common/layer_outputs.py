"""Observable outputs of layers, in graphs too: a subclassed model has no `layer.output`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeAlias

import keras

Tensor: TypeAlias = Any
"""A tensor of the backend that Keras runs on."""
Outputs = dict[str, Tensor]
"""Outputs of layers, by the name of the Keras layer, in execution order."""
Watcher = Callable[[str, Tensor], Tensor]
"""Given the name of a Keras layer and its output, returns what the next layer takes."""

_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Within the context, every running layer of a model passes its output to `watcher`."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def collected_outputs(zeros: Mapping[str, Tensor] = MappingProxyType({})) -> Iterator[Outputs]:
    """Collects the output of every layer that runs within the context, in graphs too.

    Args:
        zeros: added to the outputs of these layers: the gradients for them are those for the outputs.
    """
    outputs: Outputs = {}

    def gather(name: str, output: Tensor) -> Tensor:
        outputs[name] = output + zeros[name] if name in zeros else output
        return outputs[name]

    with watched_by(gather):
        yield outputs


def run_layer(layer: keras.layers.Layer, x: Tensor, **training: bool) -> Tensor:
    """One layer of the model, whose output is passed to the watcher, if any."""
    output = layer(x, **training)
    watcher = _WATCHER.get()
    return output if watcher is None else watcher(layer.name, output)
