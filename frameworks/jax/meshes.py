"""The block of meshes by JAX: arrays with named shardings, and one program for a grid of two by two devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from frameworks.contract import DIVIDED, BlockWeights, MeshCase, MeshLayout, MeshUpdate

Tree = dict[str, jax.Array]


def make_mesh(**axes: int) -> Mesh:
    """The devices as a mesh."""
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def shardings(layout: MeshLayout) -> dict[str, NamedSharding]:
    """The sharding of each parameter; each row of the grid has its own samples."""
    grid = make_mesh(data=2, model=2)
    whole = NamedSharding(grid, PartitionSpec())
    result = {"norm.weight": whole, "down.bias": whole}
    result |= {name: NamedSharding(grid, PartitionSpec(*[None] * axis, "model")) for name, axis in DIVIDED.items()}
    if layout == "two-meshes":
        result["norm.weight"] = NamedSharding(make_mesh(all=4), PartitionSpec("all"))
    return result


def train(case: MeshCase, weights: Tree) -> tuple[Tree, jax.Array]:
    """The weights after an update, and the norm of the gradient."""
    rows = NamedSharding(make_mesh(data=2, model=2), PartitionSpec("data"))
    positions = NamedSharding(rows.mesh, PartitionSpec("data", "model"))
    inputs, targets = jax.device_put(case.samples, rows)
    limits = [] if case.clip is None else [optax.clip_by_global_norm(case.clip)]
    optimizer = optax.chain(*limits, optax.sgd(1.0))

    def loss(own: Tree) -> jax.Array:
        scaled = inputs * jax.lax.rsqrt(jnp.mean(inputs**2, axis=-1, keepdims=True)) * own["norm.weight"]
        if case.layout == "sequence":
            scaled = jax.lax.with_sharding_constraint(scaled, positions)
        outputs = jax.nn.relu(scaled @ own["up.weight"] + own["up.bias"]) @ own["down.weight"] + own["down.bias"]
        return 0.5 * jnp.sum((outputs - targets) ** 2) / len(inputs)

    def step(own: Tree) -> tuple[Tree, jax.Array]:
        gradients = jax.grad(loss)(own)
        changes, _ = optimizer.update(gradients, optimizer.init(own), own)
        return optax.apply_updates(own, changes), optax.global_norm(gradients)

    result: tuple[Tree, jax.Array] = jax.jit(step, out_shardings=(shardings(case.layout), None))(weights)
    return result


def read(weights: Tree, device: jax.Device) -> BlockWeights:
    """The gathered weights; of replicated ones the copy on a device."""
    arrays = {}
    for name, value in weights.items():
        own = next(shard.data for shard in value.addressable_shards if shard.device == device)
        arrays[name] = np.asarray(own if own.shape == value.shape else value)
    return arrays


def read_axes(weights: Tree) -> dict[str, int]:
    """The axis of each array that the columns of the grid divide."""
    specs = {name: tuple(value.sharding.spec) for name, value in weights.items()}
    return {name: spec.index("model") for name, spec in specs.items() if "model" in spec}


def update(case: MeshCase) -> tuple[MeshUpdate, ...]:
    """Every device's view of an update; Orbax saves."""
    places = shardings(case.layout)
    own = jax.device_put(dict(case.weights), places)
    placements = {"build": read_axes(own)}
    own, norm = train(case, own)
    placements["update"] = read_axes(own)
    if case.folder is not None:
        like = {n: jax.ShapeDtypeStruct(own[n].shape, own[n].dtype, sharding=s) for n, s in places.items()}
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(case.folder / "state", own)
            checkpointer.wait_until_finished()
            own = checkpointer.restore(case.folder / "state", like)
        placements["reload"] = read_axes(own)
    return tuple(MeshUpdate(read(own, device), float(norm), "", placements) for device in jax.devices())


def reports_unknown_name(weights: BlockWeights) -> bool:
    """Whether shardings with a name that no parameter has raise."""
    named = shardings("tensor")
    try:
        jax.device_put(dict(weights), named | {"upp.weight": named["up.weight"]})
    except ValueError:
        return True
    return False
