"""The recomputation calls of Keras, as the cases of Σ tanh(x·w) call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras

from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.jax.recompute import differentiated

Function = Callable[..., jax.Array]


class ScopedFunction(keras.layers.Layer):
    """A layer whose `call` is a function; made inside `keras.RematScope`, Keras recomputes it."""

    def __init__(self, function: Function) -> None:
        super().__init__(dtype="float32")
        self._function = function

    def call(self, *arguments: Any, **keywords: Any) -> jax.Array:
        return self._function(*arguments, **keywords)


def _wrapped(function: Function, variant: str) -> Function:
    if variant == "keras.remat":
        return keras.remat(function)
    with keras.RematScope(mode="full"):
        return ScopedFunction(function)


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str) -> RecomputeResult:
    """One case of `Framework.recompute`; the framework's own exceptions leave this call."""

    def run(function: Function, *args: Any, **named: Any) -> jax.Array:
        return _wrapped(function, variant)(*args, **named)

    (place,) = jax.numpy.zeros(()).devices()
    return differentiated(case, x, w, run, place)
