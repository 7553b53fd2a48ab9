"""Bytes saved between forward and backward: the arrays in the closure of `jax.vjp`'s pull-back."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from frameworks.jax.core.arrays import Flat


def saved_bytes(losses: Callable[[Flat], Any], leaves: Flat, batch: Any) -> int:
    """Bytes of the arrays that the pull-back of `losses` at `leaves` holds, each once, without parameters and batch.

    The forward pass runs operation by operation: a compiled one would not show what it keeps. A product's pull-back
    then holds a copy of its weight, which a compiled one reads where it is: left out like the parameter.
    """
    _, pull = jax.vjp(losses, leaves)
    excluded = {_place(array) for array in jax.tree.leaves((leaves, batch))}
    arrays = {_place(array): array for array in jax.tree.leaves(pull) if isinstance(array, jax.Array)}
    return sum(
        array.nbytes
        for place, array in arrays.items()
        if place not in excluded and not any(_copy(array, parameter) for parameter in leaves.values())
    )


def _copy(array: jax.Array, parameter: jax.Array) -> bool:
    alike = array.dtype == parameter.dtype and array.shape == parameter.shape
    return alike and np.array_equal(array, parameter)


def _place(array: jax.Array) -> int:
    return int(array.unsafe_buffer_pointer())


def peak_bytes(device: jax.Device) -> int | None:
    """The peak of a device's allocator in this process; None on a CPU, of which JAX keeps none."""
    statistics = device.memory_stats()
    return None if statistics is None else int(statistics["peak_bytes_in_use"])


def has_peak() -> bool:
    """Whether the device in use has such a peak."""
    (device,) = jax.numpy.ones(()).devices()
    return device.memory_stats() is not None
