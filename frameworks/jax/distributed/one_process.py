"""What both modes with ranks share: one process is all ranks, each on a device of its own."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Capability, Unsupported
from frameworks.jax.core.on_device import OnDevice

READINGS = frozenset(
    {
        "parameters",
        "master_parameters",
        "optimizer_state",
        "buffers",
        "scaler_state",
        "scaler_settings",
        "accumulator",
        "random_state",
        "state",
    }
)
"""Methods whose result each rank reads from its own device."""


class AllRanks:
    """The process of all ranks.

    Raises:
        ValueError: JAX has too few devices: XLA_FLAGS must create them before the import.
    """

    made: ClassVar[type[OnDevice]]
    nothing_to_shard: ClassVar[str]

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        self.framework = self.made(device, mode)
        self.count = count
        if rank or len(jax.devices()) < count:
            raise ValueError(f"devices for the ranks: got {len(jax.devices())}, want {count}")

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Any:
        """A new run of all ranks.

        Raises:
            Unsupported: the level shards nothing of this model.
            ValueError: the recipe is for another number of ranks.
        """
        ranks = recipe.ranks
        if ranks is None or ranks.count != self.count:
            raise ValueError(f"ranks of the recipe: got {ranks}, want {self.count}")
        if ranks.shards > 1 and not self.divides(model, ranks):
            raise Unsupported(Capability.of_ranks(ranks)[0], self.nothing_to_shard, shards_uneven_rows)
        return self.begin(model, recipe, weights)

    @abstractmethod
    def divides(self, model: Model, ranks: Ranks) -> bool:
        """Whether the level shards anything of a model."""

    @abstractmethod
    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> Any:
        """A run of all ranks."""

    def barrier(self) -> None:
        """Returns at once: all ranks are in this process."""


def shards_uneven_rows() -> bool:
    """Whether three rows can be divided over two devices."""
    try:
        mesh = AbstractMesh((2,), ("shard",))
    except TypeError:  # before 0.5
        mesh = AbstractMesh((("shard", 2),))
    sharding = NamedSharding(mesh, PartitionSpec("shard"))
    return sharding.shard_shape(np.zeros((3, 2)).shape) != (3, 2)
