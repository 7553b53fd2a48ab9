"""The recomputation calls of Keras and TensorFlow on Σ tanh(x·w)."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.base.recompute import (
    CLOSED_OVER,
    FACTOR,
    NO_GRAD_INPUT,
    WEIGHTS_CHANGE,
    FailingRerun,
    recomputed_call,
)
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.keras_parts.recompute import Function, recomputed
from frameworks.tf.network import WRAPPERS
from frameworks.tf.steps import compiled


def _wrapped(function: Function, variant: str) -> Function:
    return WRAPPERS[variant](function) if variant in WRAPPERS else recomputed(function, variant)


def _product(x: Any, w: Any) -> tf.Tensor:
    return tf.tanh(tf.matmul(x, w))


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, mode: str) -> RecomputeResult:
    """Value and gradients of Σ tanh(x·w) for x (n, m) and w (m, k), called as `case` says.

    Raises:
        RuntimeError: in case "raises", and whatever the framework raises for a call that it does not take.
    """
    weight, rerun = tf.Variable(w), FailingRerun()
    closed = case in CLOSED_OVER

    def run(function: Function, *args: Any, **named: Any) -> tf.Tensor:
        return _wrapped(function, variant)(*args, **named)

    def failing(x: Any, w: Any) -> tf.Tensor:
        rerun.begin()
        return _product(x, w)

    def differentiated(x: Any, w: Any) -> tuple[Any, ...]:
        given = weight if closed else w
        with tf.GradientTape(persistent=True) as tape:
            if case != NO_GRAD_INPUT:
                tape.watch(x)
            if not closed:
                tape.watch(w)
            value = tf.reduce_sum(recomputed_call(case, run, _product, failing, x, given))
        if case == WEIGHTS_CHANGE:
            weight.assign(weight * FACTOR)
        sources = [None if case == NO_GRAD_INPUT else x, given]
        return value, *(None if source is None else tape.gradient(value, source) for source in sources)

    value, of_x, of_w = compiled(differentiated, mode)(tf.constant(x), tf.constant(w))
    gradients = [None if gradient is None else np.array(gradient) for gradient in (of_x, of_w)]
    return RecomputeResult(float(value), gradients[0], gradients[1])
