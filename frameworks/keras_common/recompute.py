"""The recomputation calls of Keras, as functions are passed to them."""

from collections.abc import Callable
from typing import Any

import keras

from frameworks.keras_common.layer_outputs import Tensor

Function = Callable[..., Tensor]


class ScopedFunction(keras.layers.Layer):
    """A layer whose `call` is a function; made inside `keras.RematScope`, Keras recomputes it."""

    def __init__(self, function: Function) -> None:
        super().__init__(dtype="float32")
        self._function = function

    def call(self, *arguments: Any, **keywords: Any) -> Tensor:
        return self._function(*arguments, **keywords)


def recomputed(function: Function, variant: str) -> Function:
    """The function within one of Keras' recomputation calls."""
    if variant == "keras.remat":
        return keras.remat(function)
    with keras.RematScope(mode="full"):
        return ScopedFunction(function)
