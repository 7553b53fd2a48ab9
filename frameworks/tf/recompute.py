"""The recomputation calls of Keras and TensorFlow on Σ tanh(x·w)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.tf.steps import compiled

Function = Callable[..., tf.Tensor]


class ScopedFunction(keras.layers.Layer):
    """A layer whose `call` is a function; made inside `keras.RematScope`, Keras recomputes it."""

    def __init__(self, function: Function) -> None:
        super().__init__(dtype="float32")
        self._function = function

    def call(self, *arguments: Any, **keywords: Any) -> tf.Tensor:
        return self._function(*arguments, **keywords)


def _wrapped(function: Function, variant: str) -> Function:
    match variant:
        case "keras.remat":
            return keras.remat(function)
        case "tf.recompute_grad":
            return tf.recompute_grad(function)
        case _:
            with keras.RematScope(mode="full"):
                return ScopedFunction(function)


def _product(x: Any, w: Any) -> tf.Tensor:
    return tf.tanh(tf.matmul(x, w))


def _of_pair(pair: Any) -> tf.Tensor:
    return _product(*pair)


def _of_mapping(arguments: dict[str, Any]) -> tf.Tensor:
    return _product(arguments["x"], arguments["w"])


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, mode: str) -> RecomputeResult:
    """Value and gradients of Σ tanh(x·w) for x (n, m) and w (m, k), called as `case` says.

    Raises:
        RuntimeError: in case "raises", and whatever the framework raises for a call that it does not take.
    """
    weight = tf.Variable(w)
    runs = [0]

    def counted(value: Any) -> tf.Tensor:
        runs[0] += 1
        if case == "raises" and runs[0] > 1:
            raise RuntimeError("the recomputed forward fails")
        return _product(value, weight)

    def forward(x: Any, w: Any) -> tf.Tensor:
        match case:
            case "plain":
                return _product(x, w)
            case "positional":
                return _wrapped(_product, variant)(x, w)
            case "tuple":
                return _wrapped(_of_pair, variant)((x, w))
            case "list":
                return _wrapped(_of_pair, variant)([x, w])
            case "dict":
                return _wrapped(_of_mapping, variant)({"x": x, "w": w})
            case "keyword":
                return _wrapped(_product, variant)(x=x, w=w)
            case _:
                return _wrapped(counted, variant)(x)

    closed = case in ("no-grad-input", "weights-changed", "raises")

    def differentiated(x: Any, w: Any) -> tuple[Any, ...]:
        with tf.GradientTape(persistent=True) as tape:
            if case != "no-grad-input":
                tape.watch(x)
            if not closed:
                tape.watch(w)
            value = tf.reduce_sum(forward(x, w))
        if case == "weights-changed":
            weight.assign(weight * 3.0)
        sources = [None if case == "no-grad-input" else x, weight if closed else w]
        return value, *(None if source is None else tape.gradient(value, source) for source in sources)

    value, of_x, of_w = compiled(differentiated, mode)(tf.constant(x), tf.constant(w))
    found = [None if gradient is None else np.array(gradient) for gradient in (of_x, of_w)]
    return RecomputeResult(float(value), found[0], found[1])
