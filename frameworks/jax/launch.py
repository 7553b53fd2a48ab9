"""Rank groups of JAX: XLA devices of one CPU, in a separate process."""

import os
from collections.abc import Mapping

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseRankGroup, ranks_of
from frameworks.jax.core.settings import KERAS, SHARDED
from frameworks.ranks import RemoteRankGroup, worker_group_of

_MEMBERS = {SHARDED: "frameworks.jax.distributed:JaxWorker", KERAS: "frameworks.jax.keras.mesh:KerasWorker"}


def rank_group(
    model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None, mode: str = SHARDED
) -> BaseRankGroup:
    """The ranks of a new run, each a device of XLA's on the CPU; the mode is that of their process.

    Raises:
        Unsupported: JAX's ranks do not do what the recipe asks for.
        ValueError: the recipe names no ranks.
    """
    count = ranks_of(recipe).count
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    worker_group = worker_group_of(_MEMBERS[mode], count, "cpu", mode, {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, 1)
    return RemoteRankGroup(worker_group, worker_group.make([(model, recipe, weights)]))
