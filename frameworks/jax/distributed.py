"""Several ranks as one program for a mesh's devices, following JAX's and Flax's guides, and the block of meshes."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from fixtures.arrays import Array
from fixtures.model import Batch, BatchNorm, Model, Window, walk
from fixtures.recipe import Ranks, Recipe
from frameworks.base import Arguments, LossLedger, MicroBatch
from frameworks.contract import (
    DIVIDED,
    BlockWeights,
    Capability,
    Gradients,
    MeshCase,
    MeshLayout,
    MeshUpdate,
    Unsupported,
    Update,
)
from frameworks.jax.core.layers import DeviceBatch, load_batch, loss_sums_of_ranks
from frameworks.jax.core.settings import Flat, OnDevice, Place, ShardingLayout, arrays_of, layout_of
from frameworks.jax.framework import JaxFramework
from frameworks.jax.training import optimizers
from frameworks.jax.training.optimizers import LossScale, RunState, ScaleUpdate, is_window
from frameworks.jax.training.steps import CarriedState, CompiledSteps, JaxMicroBatch, Plan
from frameworks.jax.training.trainer import JaxTrainer, OffloadedTrainer

NOBODY = -1

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
_FILE = "ranks.json"


@dataclass(frozen=True, eq=False)
class GatheredBatch(Batch):
    """The samples of all ranks' micro-batches, in rank order.

    Attributes:
        owners: (N,) by head name: the rank of each sample, -1 for a sample whose loss does not count.
        shares: number of items of each rank.
    """

    owners: Mapping[str, Array] = field(default_factory=dict)
    shares: tuple[int, ...] = ()

    @property
    def items(self) -> int:
        return sum(self.shares)


def gather_batch(model: Model, parts: Sequence[Batch]) -> GatheredBatch:
    """One micro-batch of the ranks' parts, each padded to the longest part with samples that do not count.

    Batch norm would include padding in its statistics, so a model with batch norm gets no padding.
    """
    pads = not any(isinstance(layer, BatchNorm) for _, layer in walk(model.layers))
    longest = max(1, *(len(part) for part in parts))
    lengths = [longest if pads else len(part) for part in parts]
    heads = list(dict.fromkeys(name for part in parts for name in part.targets))
    like = {name: next(part.targets[name] for part in parts if name in part.targets) for name in heads}
    targets = {
        name: _concatenate_padded([part.targets.get(name, first[:0]) for part in parts], lengths)
        for name, first in like.items()
    }
    owners = {name: _owners([len(part.targets.get(name, ())) for part in parts], lengths) for name in heads}
    masks = [part.mask for part in parts if part.mask is not None]
    mask = None
    if masks:
        every = [np.ones((len(part), *masks[0].shape[1:]), masks[0].dtype) for part in parts]
        own = [one if part.mask is None else part.mask for part, one in zip(parts, every, strict=True)]
        mask = _concatenate_padded(own, lengths)
    inputs = _concatenate_padded([part.inputs for part in parts], lengths)
    return GatheredBatch(inputs, targets, mask, owners, tuple(part.items for part in parts))


def gathered_window(model: Model, windows: Sequence[Window]) -> tuple[GatheredBatch, ...]:
    """The ranks' windows as one."""
    return tuple(gather_batch(model, parts) for parts in zip(*windows, strict=True))


def _concatenate_padded(parts: Sequence[Array], lengths: Sequence[int]) -> Array:
    """The concatenated arrays, each padded with zeros to its length."""
    shape = parts[0].shape[1:]
    padded = [
        np.concatenate([part, np.zeros((length - len(part), *shape), part.dtype)])
        for part, length in zip(parts, lengths, strict=True)
    ]
    return np.concatenate(padded)


def _owners(counts: Sequence[int], lengths: Sequence[int]) -> Array:
    """Each rank's number once for each of its items, then `NOBODY` up to its length."""
    ranks = np.arange(len(counts), dtype=np.int32)
    own = [np.full(count, rank) for rank, count in zip(ranks, counts, strict=True)]
    rest = [np.full(length - count, NOBODY, np.int32) for count, length in zip(counts, lengths, strict=True)]
    return np.concatenate([part for pair in zip(own, rest, strict=True) for part in pair])


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
            Unsupported: the level divides no array of this model.
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
        """Returns whether the level divides any array of a model."""

    @abstractmethod
    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> Any:
        """A run of all ranks."""

    def barrier(self) -> None:
        """Returns at once: all ranks are in this process."""


def shards_uneven_rows() -> bool:
    """Returns whether three rows can be divided over two devices."""
    try:
        mesh = AbstractMesh((2,), ("shard",))
    except TypeError:  # JAX before 0.5
        mesh = AbstractMesh((("shard", 2),))
    sharding = NamedSharding(mesh, PartitionSpec("shard"))
    return sharding.shard_shape(np.zeros((3, 2)).shape) != (3, 2)


def save(parts: Sequence[Sequence[MicroBatch]], ranks: int, path: Path) -> None:
    """Writes the result of each micro-batch of the open window for each rank."""
    table = [[(own.total, own.items) for own in shares] for shares in parts]
    (path / _FILE).write_text(json.dumps({"ranks": ranks, "window": table}), encoding="utf-8")


def restore(path: Path, ranks: int) -> list[tuple[MicroBatch, ...]]:
    """Reads what `save` wrote.

    Raises:
        ValueError: the file is missing or incomplete, or is from another number of ranks.
    """
    file = path / _FILE
    try:
        saved: dict[str, Any] = json.loads(file.read_text("utf-8"))
        count = saved["ranks"]
        window = [tuple(MicroBatch(float(total), int(items)) for total, items in shares) for shares in saved["window"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    if window and count != ranks:
        raise ValueError(f"{path}: saved inside a window by {count} ranks, and these are {ranks}")
    return window


class MeshSteps(CompiledSteps):
    """The functions of a plan for a mesh; sums of losses are (ranks,)."""

    def __init__(self, plan: Plan, sharding: ShardingLayout) -> None:
        super().__init__(plan)
        self.sharding = self.pin = sharding

    def sums(self, outputs: dict[str, jax.Array], batch: DeviceBatch) -> list[jax.Array]:
        return loss_sums_of_ranks(self.plan.model, outputs, batch, self.sharding.ranks)

    def means(self, sums: list[jax.Array], items: jax.Array) -> list[jax.Array]:
        return super().means([jnp.sum(own) for own in sums], items)

    def _backward(
        self, parameters: Flat, moved: CarriedState, scale: LossScale, batch: DeviceBatch, items: jax.Array
    ) -> tuple[Flat, ScaleUpdate | None, list[jax.Array], CarriedState]:
        batch = jax.lax.with_sharding_constraint(batch, self.sharding.rows)
        gradients, judged, sums, after = super()._backward(parameters, moved, scale, batch, items)
        return (
            self.sharding.gradients(gradients),
            judged,
            self.sharding.replicate(sums),
            self.sharding.replicate(after),
        )

    def _surrogate(
        self, parameters: Flat, scale: LossScale, cotangents: Mapping[str, jax.Array], parts: jax.Array
    ) -> tuple[Flat, ScaleUpdate | None]:
        gradients, judged = super()._surrogate(parameters, scale, cotangents, parts)
        return self.sharding.gradients(gradients), judged

    def _predict(self, parameters: Flat, buffers: Flat, inputs: jax.Array) -> dict[str, jax.Array]:
        return self.sharding.replicate(super()._predict(parameters, buffers, inputs))


mesh_steps_of = cache(MeshSteps)
"""The functions of a plan for a mesh, shared by all runs of both."""


@dataclass(frozen=True)
class SharedMicroBatch(JaxMicroBatch):
    """A micro-batch of the open window; `parts`: its results by rank."""

    parts: tuple[MicroBatch, ...] = ()


class MeshTrainer(JaxTrainer):
    """A run on all devices of a mesh; its batches are `GatheredBatch`es, gradients passed in have (ranks, *shape).

    Attributes:
        updates: the last update by rank.
    """

    steps: MeshSteps

    def __init__(
        self, sharding: ShardingLayout, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None
    ) -> None:
        self.sharding = sharding
        self.sharers = sharding.ranks
        self.ranks = range(sharding.ranks)
        self.updates: tuple[Update, ...] = ()
        super().__init__(model, recipe, weights, sharding.mesh.devices.flat[0], "sharded")

    @property
    def place(self) -> Place:
        return self.sharding.whole

    def _compile(self, plan: Plan) -> CompiledSteps:
        return mesh_steps_of(plan, self.sharding)

    def _place_state(self, state: RunState) -> RunState:
        placed: RunState = jax.device_put(state, self.sharding.state_shardings(state))
        return placed

    # inputs of ranks

    def _load(self, batch: Batch) -> DeviceBatch:
        """The batch with each rank's part on its device; unequal parts are split inside the program."""
        assert isinstance(batch, GatheredBatch)
        self._passes += 1
        loaded = load_batch(self.model, batch)._replace(owners=dict(batch.owners))
        even = len(batch) % self.sharding.ranks == 0
        self._loaded = jax.device_put(loaded, self.sharding.rows if even else self.sharding.whole)
        return self._loaded

    def _leaves(self, name: str, value: Any) -> list[Array]:
        dtype = self.leaves[self.layout.parameters[name]].dtype
        return [self.layout.leaf(name, np.asarray(own), dtype) for own in value]

    def _place_gradients(self, gradients: Gradients) -> Flat:
        return {
            self.layout.parameters[name]: self.sharding.stack(self._leaves(name, value))
            for name, value in gradients.items()
        }

    def _inject(self, gradients: Gradients) -> Flat:
        return {
            self.layout.parameters[name]: self.sharding.assemble(self._leaves(name, value), "gradient")
            for name, value in gradients.items()
        }

    # results of ranks

    def _micro_batch(self, batch: Batch, sums: list[jax.Array], before: float) -> JaxMicroBatch:
        assert isinstance(batch, GatheredBatch)
        totals = [sum(float(own[rank]) for own in map(np.asarray, sums)) for rank in self.ranks]
        parts = tuple(MicroBatch(total, items) for total, items in zip(totals, batch.shares, strict=True))
        return SharedMicroBatch(sum(totals), batch.items, before, parts=parts)

    def _fed_micro_batch(self, before: float) -> JaxMicroBatch:
        micro = super()._fed_micro_batch(before)
        part = MicroBatch(micro.total, micro.items)
        return SharedMicroBatch(micro.total, micro.items, before, parts=(part,) * self.sharding.ranks)

    def _window_update(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        update = super()._window_update(before, rate, norm, skipped=skipped)
        self.updates = tuple(self._update_of(rank, update) for rank in self.ranks)
        return update

    def _update_of(self, rank: int, update: Update) -> Update:
        """The update of a rank, with its own losses and the scale on its device."""
        own: LossLedger[MicroBatch] = LossLedger()
        for micro in self.ledger.micro_batches:
            part = _parts(micro)[rank]
            own.add(part, own.items + part.items)
        scale = self.sharding.of_rank(self.scale, rank)
        state = optimizers.read_scale(scale)
        good = int(state["good_steps"]) if "good_steps" in state else None
        return replace(
            update, loss=own.loss(), micro_losses=own.losses(), scale_after=optimizers.current(scale), good_steps=good
        )

    # calls of ranks

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method with the arguments of each rank; returns one result for each.

        Raises:
            Unsupported: RANKS_COLLECTIVES, or a method that the run does not support.
        """
        own = [entry.arguments for entry in arguments]
        if verb in READINGS:
            return tuple(getattr(self.view_of_rank(rank), verb)() for rank in self.ranks)
        match verb:
            case "update_share":
                self.update(gathered_window(self.model, [window for window, _ in own]))
                return self.updates
            case "accumulate":
                self.accumulate(gather_batch(self.model, [batch for batch, _ in own]), own[0][1])
                return tuple(part.loss for part in _parts(self.ledger.micro_batches[-1]))
            case "apply":
                self.apply()
                return self.updates
            case "gradients_share":
                result = self.window_gradients(gathered_window(self.model, [window for window, _ in own]))
                return tuple(self.of_trained(gradients) for gradients in self._by_rank(result))
            case "apply_gradients":
                return self._feed(arguments)
            case "predict":
                return self._by_rank(self.outputs(self.leaves, own[0][0]))
            case "predict_averaged":
                return self._by_rank(self.outputs(self.averages(), own[0][0]))
            case "resident_bytes":
                return tuple(self.resident_bytes(rank) for rank in self.ranks)
            case "offloaded_bytes":
                return (self.offloaded_bytes(), *({} for _ in self.ranks[1:]))
            case "collectives":
                raise self.refusal(Capability.RANKS_COLLECTIVES)
            case _:
                return (getattr(self, verb)(*own[0], **arguments[0].named),) * len(arguments)

    def _by_rank(self, tree: Any) -> tuple[Any, ...]:
        return tuple(self.sharding.of_rank(tree, rank) for rank in self.ranks)

    def _feed(self, arguments: Sequence[Arguments]) -> tuple[Update, ...]:
        named = dict(arguments[0].named)
        inject = [entry.named["inject"] for entry in arguments]
        named["inject"] = self._stack_gradients(inject) if any(own is not None for own in inject) else None
        self.apply_gradients(
            *(self._stack_gradients(parts) for parts in zip(*(own.arguments for own in arguments), strict=True)),
            **named,
        )
        return self.updates

    def _stack_gradients(self, parts: Sequence[Gradients | None]) -> dict[str, Array]:
        """The ranks' gradients, (ranks, *shape) for each trained parameter; zeros where a rank has none."""
        mappings = [own or {} for own in parts]
        result = {}
        for name, shape in self.model.parameter_shapes().items():
            values = [own.get(name) for own in mappings]
            if name not in self.recipe.frozen and any(value is not None for value in values):
                result[name] = np.stack([np.zeros(shape) if v is None else np.asarray(v, np.float64) for v in values])
        return result

    # state of ranks

    def view_of_rank(self, rank: int) -> JaxTrainer:
        """A read-only view of the run with a rank's parts of its arrays."""
        view = copy.copy(self)
        for name in ("train_state", "scale", "moved", "pending"):
            setattr(view, name, self.sharding.of_rank(getattr(self, name), rank))
        return view

    def resident_bytes(self, rank: int) -> dict[str, int]:
        """Bytes on a rank's device; gradients are those of the last update."""
        held = None if self.outcome is None else self.outcome.gradients
        gradients = arrays_of(self.train_state, "gradient") if is_window(self.train_state) else (held or {}).values()
        kinds = {
            "parameter": self.leaves.values(),
            "gradient": gradients,
            "optimizer": arrays_of(self.train_state, "optimizer"),
            "buffer": self.moved.buffers.values(),
        }
        return {kind: self.sharding.bytes_on(values, rank) for kind, values in kinds.items()}

    # the whole run

    def save(self, path: Path) -> None:
        super().save(path)
        save([_parts(micro) for micro in self.ledger.micro_batches], self.sharding.ranks, path)

    def restore(self, path: Path) -> None:
        parts = restore(path, self.sharding.ranks)
        super().restore(path)
        micro_batches = [
            SharedMicroBatch(**{**vars(micro), "parts": own})
            for micro, own in zip(self.ledger.micro_batches, parts, strict=True)
        ]
        self.ledger.replace(micro_batches, self.ledger.items)


def _parts(micro: JaxMicroBatch) -> tuple[MicroBatch, ...]:
    """The results of a micro-batch by rank."""
    assert isinstance(micro, SharedMicroBatch)
    return micro.parts


class JaxWorker(AllRanks):
    """The process of all ranks of a mesh."""

    made = JaxFramework
    nothing_to_shard = (
        "jax.sharding.NamedSharding divides an axis into equal parts alone, and these ranks divide no axis of this "
        "model's arrays evenly"
    )

    def divides(self, model: Model, ranks: Ranks) -> bool:
        sharding = layout_of(ranks)
        return any(sharding.divided_axis(shape) is not None for shape in model.parameter_shapes().values())

    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> MeshTrainer:
        assert recipe.ranks is not None
        trainer = MeshTrainer if recipe.offload is None else OffloadedMesh
        return self.framework.bind(trainer(layout_of(recipe.ranks), model, recipe, weights))


class OffloadedMesh(OffloadedTrainer, MeshTrainer):
    """A run on all devices of a mesh, with offloaded state."""


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
