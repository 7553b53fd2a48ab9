"""Conversion between NumPy and JAX arrays, which share `ml_dtypes`' bfloat16, and bytes saved for the backward pass."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding

wide_formats = jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
"""A scope that enables or disables 64-bit formats; experimental in older versions of JAX."""

Place: TypeAlias = jax.Device | NamedSharding
"""Placement of a run's arrays: a device, or a sharding over a mesh."""

Flat = dict[str, jax.Array]
"""A tree of variables with its paths joined by "/", as `flax.traverse_util` joins them."""


def flat(tree: Mapping[str, Any]) -> Flat:
    """The leaves of a nested dictionary by joined path."""
    return dict(flatten_dict(tree, sep="/"))


def nest_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dictionary whose leaves are given by joined path."""
    return dict(unflatten_dict(dict(leaves), sep="/"))


def saved_bytes(losses: Callable[[Flat], Any], leaves: Flat, batch: Any) -> int:
    """Bytes of the distinct arrays in the pull-back of `losses` at `leaves`, without parameters and batch.

    The forward pass runs operation by operation, since a compiled one does not show its saved arrays. The pull-back of
    a matmul then has a copy of the weight. A compiled one has none, so the copy is not counted.
    """
    _, pull = jax.vjp(losses, leaves)
    excluded = {_place(array) for array in jax.tree.leaves((leaves, batch))}
    arrays = {_place(array): array for array in jax.tree.leaves(pull) if isinstance(array, jax.Array)}
    return sum(
        array.nbytes
        for key, array in arrays.items()
        if key not in excluded and not any(_copy(array, parameter) for parameter in leaves.values())
    )


def _copy(array: jax.Array, parameter: jax.Array) -> bool:
    alike = array.dtype == parameter.dtype and array.shape == parameter.shape
    return alike and np.array_equal(array, parameter)


def _place(array: jax.Array) -> int:
    return int(array.unsafe_buffer_pointer())


def peak_bytes(device: jax.Device) -> int | None:
    """The peak of a device's allocator in this process, in bytes; None on a CPU, which has no such count in JAX."""
    statistics = device.memory_stats()
    return None if statistics is None else int(statistics["peak_bytes_in_use"])


def has_peak() -> bool:
    """Returns whether the device in use reports a peak of allocated bytes."""
    (device,) = jax.numpy.ones(()).devices()
    return device.memory_stats() is not None
