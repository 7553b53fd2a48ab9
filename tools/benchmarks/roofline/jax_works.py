"""A product and a sum in JAX, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from frameworks.jax.core.on_device import platforms


def product(size: int, format_name: str, device: str, *, left: bool, right: bool) -> Callable[[], object]:
    """The product of two matrices (size, size), of which the left or the right one may be transposed."""
    return _called(lambda a, b: (a.T if left else a) @ (b.T if right else b), (size, size), format_name, device)


def addition(elements: int, device: str) -> Callable[[], object]:
    """The sum of two float32 vectors."""
    return _called(jnp.add, (elements,), "float32", device)


def _called(
    operation: Callable[..., Any], shape: tuple[int, ...], format_name: str, device: str
) -> Callable[[], object]:
    place = jax.devices(platforms()[device])[0]
    left, right = (jax.device_put(jnp.ones(shape, format_name), place) for _ in range(2))
    compiled = jax.jit(operation)
    return lambda: compiled(left, right)
