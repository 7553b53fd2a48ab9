"""Observable outputs of layers, in graphs too: a subclassed model has no `layer.output`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import keras

Tensor: TypeAlias = Any
"""A tensor of the backend that Keras runs on."""
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


def run_layer(layer: keras.layers.Layer, x: Tensor, **training: bool) -> Tensor:
    """One layer of the model, whose output is passed to the watcher, if any."""
    output = layer(x, **training)
    watcher = _WATCHER.get()
    return output if watcher is None else watcher(layer.name, output)
