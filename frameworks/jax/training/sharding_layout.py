"""Sharding layout of a run's arrays over a mesh, and each rank's part of an array."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey

from fixtures.arrays import Array
from fixtures.recipe import Ranks, Sharding
from frameworks.jax.core.arrays import Flat
from frameworks.jax.training.optimizers import RunState

REPLICA, SHARD = "replica", "shard"
"""Axes of the mesh: copies of what is sharded, and the parts of one copy."""

_SHARDED: dict[Sharding, frozenset[str]] = {
    "replicated": frozenset(),
    "optimizer": frozenset({"optimizer"}),
    "gradients": frozenset({"optimizer", "gradient"}),
    "full": frozenset({"optimizer", "gradient", "parameter"}),
}

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class ShardingLayout:
    """A level of sharding on a mesh: rank r is the mesh's r-th device, row by row.

    An array of which the ranks divide no axis evenly lies whole on every device, for `NamedSharding` takes no other.
    """

    mesh: Mesh
    level: Sharding

    @property
    def whole(self) -> NamedSharding:
        """A copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def rows(self) -> NamedSharding:
        """The first axis divided over all devices."""
        return NamedSharding(self.mesh, PartitionSpec((REPLICA, SHARD)))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.mesh.devices.size)

    def divided_axis(self, shape: tuple[int, ...]) -> int | None:
        """The first axis that the ranks which share a copy divide evenly, None if there is none."""
        parts = self.mesh.shape[SHARD]
        return next((axis for axis, size in enumerate(shape) if size and size % parts == 0), None)

    def _sharding(self, kind: str, shape: tuple[int, ...]) -> NamedSharding:
        axis = self.divided_axis(shape) if kind in _SHARDED[self.level] else None
        return self.whole if axis is None else NamedSharding(self.mesh, PartitionSpec(*[None] * axis, SHARD))

    def state_shardings(self, state: RunState) -> Any:
        """Shardings of the state's arrays."""
        return jax.tree_util.tree_map_with_path(lambda path, leaf: self._sharding(_kind(path), leaf.shape), state)

    # inside a compiled program

    def state(self, state: RunState) -> RunState:
        """Parameters and the optimizer's state with their shardings."""
        result: RunState = jax.lax.with_sharding_constraint(state, self.state_shardings(state))
        return result

    def gradients(self, gradients: Flat) -> Flat:
        """Gradients with their shardings."""
        places = {place: self._sharding("gradient", value.shape) for place, value in gradients.items()}
        result: Flat = jax.lax.with_sharding_constraint(gradients, places)
        return result

    def replicated(self, tree: Tree) -> Tree:
        """A tree of arrays with a copy on every device."""
        result: Tree = jax.lax.with_sharding_constraint(tree, self.whole)
        return result

    # what a rank has

    def of_rank(self, tree: Tree, rank: int) -> Tree:
        """A tree's arrays in NumPy for a rank: its own copy, or the shards of its copy.

        What is no array of JAX's stays as it is.
        """
        return jax.tree.map(lambda leaf: self._array_of_rank(leaf, rank) if isinstance(leaf, jax.Array) else leaf, tree)

    def _array_of_rank(self, value: jax.Array, rank: int) -> Array:
        parts = self.mesh.shape[SHARD]
        devices = list(self.mesh.devices.flat)
        shards = {shard.device: shard for shard in value.addressable_shards}
        copy = devices[rank - rank % parts : rank - rank % parts + parts]
        result = np.empty(value.shape, value.dtype)
        for device in [*copy, devices[rank]]:
            result[shards[device].index] = np.asarray(shards[device].data)
        return result

    def bytes_on(self, values: Iterable[jax.Array], rank: int) -> int:
        """Bytes that a rank holds of arrays."""
        device = list(self.mesh.devices.flat)[rank]
        return sum(s.data.nbytes for value in values for s in value.addressable_shards if s.device == device)

    def stacked(self, leaves: list[Array]) -> jax.Array:
        """(ranks, ...): each rank's array on its own device."""
        return jax.device_put(np.stack(leaves), self.rows)

    def pieced(self, leaves: list[Array], kind: str) -> jax.Array:
        """An array whose parts are those of each rank's own array that the rank holds of this kind.

        Of what several hold, it is the first one's.
        """
        shape = leaves[0].shape
        sharding = self._sharding(kind, shape)
        indices = sharding.devices_indices_map(shape)
        whole = np.empty(shape, leaves[0].dtype)
        for rank, device in reversed(list(enumerate(self.mesh.devices.flat))):
            whole[indices[device]] = leaves[rank][indices[device]]
        return jax.device_put(whole, sharding)


def layout_of(ranks: Ranks) -> ShardingLayout:
    """The mesh of the first devices that there are, as many as ranks, in rows of those that share a copy.

    Raises:
        ValueError: there are fewer devices.
    """
    devices = jax.devices()[: ranks.count]
    grid = np.array(devices).reshape(ranks.count // ranks.shards, ranks.shards)
    return ShardingLayout(Mesh(grid, (REPLICA, SHARD)), ranks.level)


def arrays_of(state: RunState, kind: str) -> list[jax.Array]:
    """The optimizer's arrays but for its counters ("optimizer"), or what `optax.MultiSteps` holds ("gradient")."""
    leaves = jax.tree_util.tree_leaves_with_path(state.replace(average=None))
    return [leaf for path, leaf in leaves if _kind(path) == kind and leaf.ndim]


def _kind(path: tuple[Any, ...]) -> str:
    """The kind of a leaf of the state; an average of the weights is sharded like the optimizer's arrays."""
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    if "acc_grads" in names:
        return "gradient"
    return "parameter" if "params" in names[:1] else "optimizer"
