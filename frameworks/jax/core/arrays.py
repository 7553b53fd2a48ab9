"""Trees of JAX arrays by joined path, their placement on a mesh of devices, and the bytes that they occupy."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey

from fixtures.arrays import Array
from fixtures.recipe import Ranks, Sharding

NO_PEAK = "memory_stats of a CPU device is None: JAX keeps none of its allocator"

wide_formats = jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
"""A scope that enables or disables 64-bit formats; experimental in older versions of JAX."""

Place: TypeAlias = jax.Device | NamedSharding
"""Placement of a run's arrays: a device, or a sharding over a mesh."""

Flat = dict[str, jax.Array]
"""A tree of variables with its paths joined by "/", as `flax.traverse_util` joins them."""

Tree = TypeVar("Tree")

REPLICA, SHARD = "replica", "shard"
"""Axes of the mesh: copies of the sharded arrays, and the parts of one copy."""

_SHARDED: dict[Sharding, frozenset[str]] = {
    "replicated": frozenset(),
    "optimizer": frozenset({"optimizer"}),
    "gradients": frozenset({"optimizer", "gradient"}),
    "full": frozenset({"optimizer", "gradient", "parameter"}),
}


def flat(tree: Mapping[str, Any]) -> Flat:
    """The leaves of a nested dictionary, by joined path."""
    return dict(flatten_dict(tree, sep="/"))


def nest_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dictionary of leaves by joined path."""
    return dict(unflatten_dict(dict(leaves), sep="/"))


@dataclass(frozen=True)
class ShardingLayout:
    """A level of sharding on a mesh: rank r is the mesh's r-th device, row by row.

    An array without an evenly divisible axis is replicated: `NamedSharding` accepts no uneven division.
    """

    mesh: Mesh
    level: Sharding

    @property
    def whole(self) -> NamedSharding:
        """The sharding of an array with a copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def rows(self) -> NamedSharding:
        """The sharding of an array whose first axis is divided over all devices."""
        return NamedSharding(self.mesh, PartitionSpec((REPLICA, SHARD)))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.mesh.devices.size)

    def divided_axis(self, shape: tuple[int, ...]) -> int | None:
        """The first axis that divides evenly over the ranks that share a copy, None if there is none."""
        return divided_axis(shape, self.mesh.shape[SHARD])

    def _sharding(self, kind: str, shape: tuple[int, ...]) -> NamedSharding:
        axis = self.divided_axis(shape) if kind in _SHARDED[self.level] else None
        return self.whole if axis is None else NamedSharding(self.mesh, PartitionSpec(*[None] * axis, SHARD))

    def state_shardings(self, state: Any) -> Any:
        """The shardings of a `TrainState`'s arrays."""
        return jax.tree_util.tree_map_with_path(lambda path, leaf: self._sharding(_kind(path), leaf.shape), state)

    # For use inside a compiled program.

    def state(self, state: Tree) -> Tree:
        """The parameters and the optimizer's state of a `TrainState` with their shardings."""
        result: Tree = jax.lax.with_sharding_constraint(state, self.state_shardings(state))
        return result

    def gradients(self, gradients: Flat) -> Flat:
        """Gradients with their shardings."""
        shardings = {path: self._sharding("gradient", value.shape) for path, value in gradients.items()}
        result: Flat = jax.lax.with_sharding_constraint(gradients, shardings)
        return result

    def replicate(self, tree: Tree) -> Tree:
        """A tree of arrays with a copy on every device."""
        result: Tree = jax.lax.with_sharding_constraint(tree, self.whole)
        return result

    # The state of a rank, outside of compiled programs.

    def of_rank(self, tree: Tree, rank: int) -> Tree:
        """A rank's tree in NumPy: arrays from its own device, completed from the devices that share its copy.

        Leaves that are not JAX arrays stay unchanged.
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
        """Bytes of the parts of these arrays that are on a rank's device."""
        device = list(self.mesh.devices.flat)[rank]
        return sum(s.data.nbytes for value in values for s in value.addressable_shards if s.device == device)

    def stack(self, leaves: list[Array]) -> jax.Array:
        """The arrays of all ranks as one array (ranks, ...), with each rank's on its own device."""
        return jax.device_put(np.stack(leaves), self.rows)

    def assemble(self, leaves: list[Array], kind: str) -> jax.Array:
        """An array of this kind, assembled from a whole-sized array of each rank, of which it takes the rank's part.

        A part that several ranks hold comes from the first of them.
        """
        shape = leaves[0].shape
        sharding = self._sharding(kind, shape)
        indices = sharding.devices_indices_map(shape)
        whole = np.empty(shape, leaves[0].dtype)
        for rank, device in reversed(list(enumerate(self.mesh.devices.flat))):
            whole[indices[device]] = leaves[rank][indices[device]]
        return jax.device_put(whole, sharding)


def divided_axis(shape: tuple[int, ...], parts: int) -> int | None:
    """The first axis that divides into this many equal parts, None if there is none."""
    return next((axis for axis, size in enumerate(shape) if size and size % parts == 0), None)


def layout_of(ranks: Ranks) -> ShardingLayout:
    """The layout on the first `ranks.count` devices; those in a row of its mesh share one copy of sharded arrays.

    Raises:
        ValueError: there are fewer devices than ranks.
    """
    devices = jax.devices()[: ranks.count]
    grid = np.array(devices).reshape(ranks.count // ranks.shards, ranks.shards)
    return ShardingLayout(Mesh(grid, (REPLICA, SHARD)), ranks.level)


def arrays_of(state: Any, kind: str) -> list[jax.Array]:
    """The arrays of a kind, without counters: "optimizer", or "gradient", the accumulators of `optax.MultiSteps`."""
    leaves = jax.tree_util.tree_leaves_with_path(state.replace(average=None))
    return [leaf for path, leaf in leaves if _kind(path) == kind and leaf.ndim]


def _kind(path: tuple[Any, ...]) -> str:
    """The kind of a leaf of the state; an average of the weights is sharded like the optimizer's arrays."""
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    if "acc_grads" in names:
        return "gradient"
    return "parameter" if "params" in names[:1] else "optimizer"


def saved_bytes(losses: Callable[[Flat], Any], leaves: Flat, batch: Any) -> int:
    """Bytes of the distinct arrays in the pull-back of `losses` at `leaves`, without parameters and batch.

    The forward pass runs operation by operation, since a compiled one does not show its saved arrays. The pull-back of
    a matmul then has a copy of the weight. A compiled one has none, so the copy is not counted.
    """
    _, pull_back = jax.vjp(losses, leaves)
    excluded = {_address(array) for array in jax.tree.leaves((leaves, batch))}
    arrays = {_address(array): array for array in jax.tree.leaves(pull_back) if isinstance(array, jax.Array)}
    return sum(
        array.nbytes
        for key, array in arrays.items()
        if key not in excluded and not any(_is_copy(array, parameter) for parameter in leaves.values())
    )


def _is_copy(array: jax.Array, parameter: jax.Array) -> bool:
    alike = array.dtype == parameter.dtype and array.shape == parameter.shape
    return alike and np.array_equal(array, parameter)


def _address(array: jax.Array) -> int:
    return int(array.unsafe_buffer_pointer())


def peak_bytes(device: jax.Device) -> int | None:
    """The peak of a device's allocator in this process, in bytes; None on a CPU, which has no such count in JAX."""
    statistics = device.memory_stats()
    return None if statistics is None else int(statistics["peak_bytes_in_use"])


def has_peak() -> bool:
    """Whether the device in use reports a peak of allocated bytes."""
    (device,) = jax.numpy.ones(()).devices()
    return device.memory_stats() is not None
