"""The recomputation calls of Keras and TensorFlow on Σ tanh(x·w)."""

from typing import Any

import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.functions import SCALE, FunctionUse
from frameworks.base.recompute import CLOSED_OVER, FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, RecomputeCase, RecomputeResult
from frameworks.keras_common.recompute import Function, recomputed
from frameworks.tf.core.network import WRAPPERS
from frameworks.tf.core.steps import compiled


def recomputing(function: Function, variant: str) -> Function:
    """The function within a recomputation call."""
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
        return recomputing(function, variant)(*args, **named)

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


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None, mode: str) -> FunctionResult:
    """The gradients of `fixtures.functions`: tf.custom_gradient cannot ask, so frozen inputs are known from outside."""

    @tf.custom_gradient
    def pair(a: Any, b: Any, c: Any, scale: float = SCALE) -> Any:
        def gradient(y: Any, z: Any) -> list[Any]:
            every = (2.0 * scale * y * b, scale * y * a + z, z)
            return [each if needed else None for each, needed in zip(every, use.needs, strict=True)]

        return (scale * a * b, b + c), gradient

    def loss(*given: Any) -> Any:
        each = [dict(zip("yz", pair(*given), strict=True)) for _ in range(use.times)]
        return tf.add_n([tf.reduce_sum(outputs[name]) for outputs in each for name in use.outputs])

    def differentiated(*given: Any) -> list[Any]:
        sources = [each for each, needed in zip(given, use.needs, strict=True) if needed]
        with tf.GradientTape() as tape:
            for source in sources:
                tape.watch(source)
            value = (loss if variant is None else recomputing(loss, variant))(*given)
        return list(tape.gradient(value, sources))

    result = iter(compiled(differentiated, mode)(*map(tf.constant, inputs)))
    return FunctionResult(None, tuple(np.asarray(next(result)) if needed else None for needed in use.needs))
