"""Bytes that JAX holds between forward and backward: what the pull-back of `jax.vjp` closes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from frameworks.jax.arrays import Flat


def saved_bytes(losses: Callable[[Flat], Any], leaves: Flat, batch: Any) -> int:
    """Bytes of the arrays that the pull-back of `losses` at `leaves` holds, each once, without parameters and batch.

    The forward pass runs operation by operation: a compiled one would not show what it keeps.
    """
    _, pull = jax.vjp(losses, leaves)
    excluded = {_place(array) for array in jax.tree.leaves((leaves, batch))}
    held = {_place(array): array.nbytes for array in jax.tree.leaves(pull) if isinstance(array, jax.Array)}
    return sum(count for place, count in held.items() if place not in excluded)


def _place(array: jax.Array) -> int:
    return int(array.unsafe_buffer_pointer())
