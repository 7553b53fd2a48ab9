"""An operation whose backward pass a user wrote, by `jax.custom_vjp`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from frameworks.contract import FunctionFormat

WAYS: dict[str, FunctionFormat] = {"custom_vjp": "input"}


@jax.custom_vjp
def square(x: jax.Array) -> jax.Array:
    """The operation of `fixtures.layers.UserFunction`."""
    return x * x


def _forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x * x, x


def _backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (gradient * jnp.clip(2.0 * x, -1.0, 1.0),)


square.defvjp(_forward, _backward)
