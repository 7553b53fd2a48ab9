"""Keras' updates on JAX, for attempts and measured settings."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras


class StatelessBackend:
    """Updates by `Optimizer.stateless_apply`, assigned to the variables."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""
        values, state = ([variable.value for variable in own] for own in (weights, optimizer.variables))
        arrays = [jnp.float32(gradient) for gradient in gradients]
        results = jax.jit(optimizer.stateless_apply)(state, arrays, values)
        for own, after in zip((weights, optimizer.variables), results, strict=True):
            for variable, value in zip(own, after, strict=True):
                variable.assign(value)


BACKEND = StatelessBackend()
