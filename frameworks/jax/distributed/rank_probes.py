"""Attempts with JAX's meshes for refused capabilities."""

from __future__ import annotations

import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec


def shards_uneven_rows() -> bool:
    """Whether three rows can be divided over two devices."""
    try:
        mesh = AbstractMesh((2,), ("shard",))
    except TypeError:  # before 0.5
        mesh = AbstractMesh((("shard", 2),))
    sharding = NamedSharding(mesh, PartitionSpec("shard"))
    return sharding.shard_shape(np.zeros((3, 2)).shape) != (3, 2)
