"""One training run of several ranks, as one program for the devices of a mesh, following JAX's and Flax's guides."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.base import LossLedger, MicroBatch
from frameworks.contract import Gradients, Update
from frameworks.jax.core.arrays import Flat, Place
from frameworks.jax.core.losses import DeviceBatch, load_batch, loss_sums_of_ranks
from frameworks.jax.distributed import rank_checkpoint
from frameworks.jax.distributed.gathered_batch import GatheredBatch
from frameworks.jax.training import scaler
from frameworks.jax.training.optimizers import RunState, is_window
from frameworks.jax.training.scaler import LossScale, ScaleUpdate
from frameworks.jax.training.sharding_layout import ShardingLayout, arrays_of
from frameworks.jax.training.steps import CarriedState, CompiledSteps, JaxMicroBatch, Plan
from frameworks.jax.training.trainer import JaxTrainer


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
            self.sharding.replicated(sums),
            self.sharding.replicated(after),
        )

    def _surrogate(
        self, parameters: Flat, scale: LossScale, given: Mapping[str, jax.Array], parts: jax.Array
    ) -> tuple[Flat, ScaleUpdate | None]:
        gradients, judged = super()._surrogate(parameters, scale, given, parts)
        return self.sharding.gradients(gradients), judged

    def _predict(self, parameters: Flat, buffers: Flat, inputs: jax.Array) -> dict[str, jax.Array]:
        return self.sharding.replicated(super()._predict(parameters, buffers, inputs))


@cache
def mesh_steps_of(plan: Plan, sharding: ShardingLayout) -> MeshSteps:
    """The functions of a plan for a mesh, the same ones for every run of both."""
    return MeshSteps(plan, sharding)


@dataclass(frozen=True)
class SharedMicroBatch(JaxMicroBatch):
    """A micro-batch of the open window; `parts`: its results by rank."""

    parts: tuple[MicroBatch, ...] = ()


class MeshTrainer(JaxTrainer):
    """A run on all devices of a mesh; its batches are `GatheredBatch`es, its given gradients (ranks, *shape).

    Attributes:
        updates: the last update by rank.
    """

    steps: MeshSteps

    def __init__(
        self, sharding: ShardingLayout, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None
    ) -> None:
        self.sharding = sharding
        self.sharers = sharding.ranks
        self.updates: tuple[Update, ...] = ()
        super().__init__(model, recipe, weights, sharding.mesh.devices.flat[0], "sharded")

    @property
    def place(self) -> Place:
        return self.sharding.whole

    def _compiled(self, plan: Plan) -> CompiledSteps:
        return mesh_steps_of(plan, self.sharding)

    def _placed(self, state: RunState) -> RunState:
        placed: RunState = jax.device_put(state, self.sharding.state_shardings(state))
        return placed

    # what ranks are given

    def _load(self, batch: Batch) -> DeviceBatch:
        """Each device gets its rank's part; samples that do not divide equally are split inside the program."""
        assert isinstance(batch, GatheredBatch)
        self._passes += 1
        loaded = load_batch(self.model, batch)._replace(owners=dict(batch.owners))
        even = len(batch) % self.sharding.ranks == 0
        self._loaded = jax.device_put(loaded, self.sharding.rows if even else self.sharding.whole)
        return self._loaded

    def _leaves(self, name: str, value: Any) -> list[Array]:
        dtype = self.leaves[self.layout.parameters[name]].dtype
        return [self.layout.leaf(name, np.asarray(own), dtype) for own in value]

    def _fed(self, gradients: Gradients) -> Flat:
        return {
            self.layout.parameters[name]: self.sharding.stacked(self._leaves(name, value))
            for name, value in gradients.items()
        }

    def _inject(self, gradients: Gradients) -> Flat:
        return {
            self.layout.parameters[name]: self.sharding.pieced(self._leaves(name, value), "gradient")
            for name, value in gradients.items()
        }

    # what ranks report

    def _micro_batch(self, batch: Batch, sums: list[jax.Array], before: float) -> JaxMicroBatch:
        assert isinstance(batch, GatheredBatch)
        totals = [sum(float(own[rank]) for own in map(np.asarray, sums)) for rank in range(self.sharding.ranks)]
        parts = tuple(MicroBatch(total, items) for total, items in zip(totals, batch.shares, strict=True))
        return SharedMicroBatch(sum(totals), batch.items, before, parts=parts)

    def _fed_micro_batch(self, before: float) -> JaxMicroBatch:
        micro = super()._fed_micro_batch(before)
        part = MicroBatch(micro.total, micro.items)
        return SharedMicroBatch(micro.total, micro.items, before, parts=(part,) * self.sharding.ranks)

    def _window_update(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        update = super()._window_update(before, rate, norm, skipped=skipped)
        self.updates = tuple(self._update_of(rank, update) for rank in range(self.sharding.ranks))
        return update

    def _update_of(self, rank: int, update: Update) -> Update:
        """A rank's update: with its own losses, and the scale on its device."""
        own: LossLedger[MicroBatch] = LossLedger()
        for micro in self.ledger.micro_batches:
            part = _parts(micro)[rank]
            own.add(part, own.items + part.items)
        scale = self.sharding.of_rank(self.scale, rank)
        state = scaler.arrays_of(scale)
        good = int(state["good_steps"]) if "good_steps" in state else None
        return replace(
            update, loss=own.loss(), micro_losses=own.losses(), scale_after=scaler.current(scale), good_steps=good
        )

    def last_loss(self) -> tuple[float, ...]:
        """Each rank's mean loss of the last micro-batch."""
        return tuple(part.loss for part in _parts(self.ledger.micro_batches[-1]))

    # what ranks have

    def view_of_rank(self, rank: int) -> JaxTrainer:
        """The run with what a rank has of its arrays, read-only."""
        view = copy.copy(self)
        for name in ("train_state", "scale", "moved", "pending"):
            setattr(view, name, self.sharding.of_rank(getattr(self, name), rank))
        return view

    def resident_bytes(self, rank: int) -> dict[str, int]:
        """Bytes on a rank's device; gradients are those that the last update took in."""
        taken = self.outcome.gradients if self.outcome is not None else None
        gradients = arrays_of(self.train_state, "gradient") if is_window(self.train_state) else (taken or {}).values()
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
        rank_checkpoint.save([_parts(micro) for micro in self.ledger.micro_batches], self.sharding.ranks, path)

    def restore(self, path: Path) -> None:
        parts = rank_checkpoint.restore(path, self.sharding.ranks)
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
