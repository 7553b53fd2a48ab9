"""Flax's float8 product, whose gradients overwrite a collection of scales."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import fp8_ops

from fixtures.arrays import Array
from frameworks.contract import AmaxHistory, Operand, PassResult
from frameworks.jax.core.float8_training import RULE, operand_histories

_DIMENSIONS = (((1,), (0,)), ((), ()))

ONLY_COMPILED = "outside compiled programs JAX does not hold arrays of Flax's type fm32, whose sum is the larger of two"


class FlaxDelayedProduct:
    """`Fp8DirectDotGeneralOp` on `place`.

    The scales of several micro-batches are of Flax's type `fm32`, whose sum is the larger of two.
    """

    rule = RULE.product

    def __init__(self, kernel: Array, history: int, place: jax.Device, *, jit: bool) -> None:
        self._place, self._jit = place, jit
        self._operation = fp8_ops.Fp8DirectDotGeneralOp(amax_history_length=history)
        with jax.default_device(place):
            self._kernel = jnp.asarray(kernel)
            inputs = jnp.zeros((1, len(kernel)), jnp.float32)
            self._step = jax.jit(self._trained)
            self._state: Any = self._operation.init({}, inputs, self._kernel, _DIMENSIONS)[
                fp8_ops.OVERWRITE_WITH_GRADIENT
            ]

    def train(self, *window: tuple[Array, Array]) -> tuple[PassResult, ...]:
        inputs, gradients = ([jnp.asarray(each) for each in given] for given in zip(*window, strict=True))
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            results, self._state = self._step(self._state, self._kernel, inputs, gradients)
        return tuple(PassResult(*(np.asarray(each) for each in passed)) for passed in results)

    def predict(self, inputs: Array) -> Array:
        with jax.default_device(self._place), jax.disable_jit(not self._jit):
            return np.asarray(self._output(self._state, self._kernel, jnp.asarray(inputs)))

    def amax_histories(self) -> dict[Operand, AmaxHistory]:
        return operand_histories(self._state)

    def _output(self, state: Any, kernel: jax.Array, inputs: jax.Array) -> jax.Array:
        variables = {fp8_ops.OVERWRITE_WITH_GRADIENT: state}
        made: jax.Array = self._operation.apply(variables, inputs, kernel, _DIMENSIONS)
        return made

    def _trained(
        self, state: Any, kernel: jax.Array, inputs: list[jax.Array], gradients: list[jax.Array]
    ) -> tuple[list[tuple[jax.Array, ...]], Any]:
        """Results of each micro-batch, and the state overwritten by the gradients of all of them."""
        if len(inputs) > 1:
            state = jax.tree.map(lambda each: jax.lax.convert_element_type(each, fp8_ops.fm32), state)

        def outputs_of(state: Any, kernels: list[jax.Array], inputs: list[jax.Array]) -> list[jax.Array]:
            return [self._output(state, own, each) for own, each in zip(kernels, inputs, strict=True)]

        outputs, backward = jax.vjp(outputs_of, state, [kernel] * len(inputs), inputs)
        overwritten, of_kernel, of_inputs = backward(gradients)
        overwritten = jax.tree.map(lambda each: jax.lax.convert_element_type(each, jnp.float32), overwritten)
        return list(zip(outputs, of_inputs, of_kernel, strict=True)), overwritten


def joins_windows(made: Callable[[], FlaxDelayedProduct]) -> bool:
    """Whether a window of two micro-batches is one step of the larger value."""
    product = made()
    small, large = ((np.full((1, 16), each, np.float32), np.ones((1, 16), np.float32)) for each in (1.0, 8.0))
    product.train(large, small)
    return float(product.amax_histories()["input"].amax.max()) == 8.0
