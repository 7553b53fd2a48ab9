"""An operation whose backward pass a user wrote, by `jax.custom_vjp`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

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


def _pair(a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> tuple[Any, Any]:  # noqa: ARG001
    return scale * a * b, b + c


def _pair_forward(a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> tuple[Any, Any]:
    marks = tuple(() if each.perturbed else None for each in (a, b, c))
    return _pair(a.value, b.value, c.value, scale, asked), (a.value, b.value, marks)


def _pair_backward(scale: float, asked: list[tuple[bool, ...]], residuals: Any, gradients: Any) -> tuple[Any, ...]:
    a, b, marks = residuals
    needs = tuple(mark is not None for mark in marks)
    asked.append(needs)
    y, z = (jnp.zeros(each.shape) if isinstance(each, SymbolicZero) else each for each in gradients)
    every = (2.0 * scale * y * b, scale * y * a + z, z)
    return tuple(each if needed else None for each, needed in zip(every, needs, strict=True))


pair = jax.custom_vjp(_pair, nondiff_argnums=(3, 4))
"""The operation of `fixtures.functions`; the list takes what each backward pass finds."""
pair.defvjp(_pair_forward, _pair_backward, symbolic_zeros=True)
