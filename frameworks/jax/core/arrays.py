"""Conversion between NumPy and JAX arrays; both use the bfloat16 of `ml_dtypes`."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding

from fixtures.arrays import Array

wide_formats = jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
"""A scope that enables or disables 64-bit formats; experimental in older versions of JAX."""

Place: TypeAlias = jax.Device | NamedSharding
"""Placement of a run's arrays: a device, or a sharding over a mesh."""

Flat = dict[str, jax.Array]
"""A tree of variables with its paths joined by "/", as `flax.traverse_util` joins them."""


def to_array(value: Any) -> Array:
    """A copy of a JAX array's values in its own format."""
    return np.array(value)


def flat(tree: Mapping[str, Any]) -> Flat:
    """The leaves of a nested dictionary by joined path."""
    return dict(flatten_dict(tree, sep="/"))


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dictionary whose leaves are given by joined path."""
    return dict(unflatten_dict(dict(leaves), sep="/"))
