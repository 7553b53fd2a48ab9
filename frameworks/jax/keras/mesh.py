"""Several ranks, which are the devices of Keras' distribution, and the block of meshes by `ModelParallel`."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, TensorLayout, list_devices

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import Arguments, ranks_of
from frameworks.contract import BlockWeights, Gradients, MeshCase, MeshLayout, MeshUpdate
from frameworks.jax import distributed
from frameworks.jax.core.settings import layout_of
from frameworks.jax.distributed import READINGS, AllRanks, GatheredBatch, gather_batch, gathered_window, read, read_axes
from frameworks.jax.keras.framework import KerasFramework, StatelessRun
from frameworks.jax.keras.steps import DeviceBatch, Values, divide_axes, load_parts, micro_batch
from frameworks.keras_common.optimizers import ACCUMULATOR, AVERAGE
from frameworks.keras_common.run import RunOfRanks


class DistributedTrainer(RunOfRanks, StatelessRun):
    """A run on all devices of a distribution.

    Attributes:
        sharding: layout of arrays on the devices: copies, and parts of a copy.
    """

    read = READINGS | {"resident_bytes"}

    def __init__(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> None:
        ranks = ranks_of(recipe)
        self.sharding = layout_of(ranks)
        self.ranks = range(ranks.count)
        super().__init__(model, recipe, weights, self.sharding.mesh.devices.flat[0])

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        if verb == "predict_averaged":
            return self.by_each(self.averages(), arguments[0].arguments[0])
        return super().ask(verb, arguments)

    # inputs of ranks

    def _load(self, batch: Batch) -> DeviceBatch:
        assert isinstance(batch, GatheredBatch)
        self._passes += 1
        self._loaded = load_parts(batch)
        return self._loaded

    def accumulate_parts(self, parts: Sequence[Batch]) -> tuple[float, ...]:
        batch = gather_batch(self.model, parts)
        with self.scope():
            self.run_state, self.outcome, sums = self.steps.train(self.run_state, self._load(batch))
            totals = np.sum([np.asarray(own, np.float64) for own in sums], axis=0)
        return self._enter(totals.tolist(), batch.shares)

    def _enter(self, totals: Sequence[float], items: Sequence[int]) -> tuple[float, ...]:
        """Records the result of the last micro-batch by rank."""
        assert self.outcome is not None
        outcome = self.outcome._replace(gradients=[])
        outcomes = [self.sharding.of_rank(outcome, rank) for rank in self.ranks]
        return self.record_by_rank(map(micro_batch, outcomes, totals, items))

    def gradients_of_parts(self, windows: Sequence[Window]) -> tuple[dict[str, Array], ...]:
        result = self.window_gradients(gathered_window(self.model, windows))
        return tuple(self.canonical(self.sharding.of_rank(result, rank)) for rank in self.ranks)

    def feed_part(self, parts: Sequence[Gradients]) -> None:
        self.run_state, self.outcome = self.steps.apply_gradients(self.run_state, self._stack_gradients(parts))
        self._enter([math.nan] * len(parts), [1] * len(parts))

    def _stack_gradients(self, parts: Sequence[Gradients]) -> dict[str, Array]:
        """(ranks, *shape) in Keras' shapes: each rank's gradients, zeros where a rank has none."""
        shares = [self.convert_gradients(own) for own in parts]
        gradients = {name: value for own in shares for name, value in own.items()}
        return {
            name: np.stack([own.get(name, np.zeros_like(like)) for own in shares]) for name, like in gradients.items()
        }

    def predictions(self, inputs: Array) -> tuple[dict[str, Array], ...]:
        return self.by_each(self.run_state.trained, inputs)

    def by_each(self, trained: Values, inputs: Array) -> tuple[dict[str, Array], ...]:
        """The `outputs` of each rank."""
        outputs = self.outputs(trained, inputs)
        return tuple(self.sharding.of_rank(outputs, rank) for rank in self.ranks)

    # state of ranks

    def by_rank(self, verb: str) -> tuple[Any, ...]:
        if verb == "resident_bytes":
            return tuple(self.resident_bytes(rank) for rank in self.ranks)
        return tuple(getattr(self._view_of_rank(rank), verb)() for rank in self.ranks)

    def _view_of_rank(self, rank: int) -> StatelessRun:
        """A read-only view of the run with a rank's parts of its arrays."""
        view = copy.copy(self)
        view.run_state = self.sharding.of_rank(self.run_state, rank)
        return view

    def resident_bytes(self, rank: int) -> dict[str, int]:
        """Bytes on a rank's device; without accumulators, gradients are those of the last update."""
        slots = {slot: self.get_array(variable) for slot, variable in self.slots.items()}
        sums = [value for slot, value in slots.items() if slot.startswith(ACCUMULATOR)]
        last_gradients = [] if self.outcome is None else self.outcome.gradients
        kinds = {
            "parameter": self.run_state.trained,
            "gradient": sums or last_gradients,
            "optimizer": [v for slot, v in slots.items() if not slot.startswith((ACCUMULATOR, AVERAGE))],
            "buffer": [self.get_array(variable) for variable in self.bound.buffers.values()],
        }
        return {kind: self.sharding.bytes_on(values, rank) for kind, values in kinds.items()}

    # the whole run

    def save(self, path: Path) -> None:
        super().save(path)
        windows = [ledger.micro_batches for ledger in self.ledgers]
        distributed.save(list(zip(*windows, strict=True)), len(windows), path)

    def restore(self, path: Path) -> None:
        parts = distributed.restore(path, len(self.ledgers))
        super().restore(path)
        window = self.ledger.micro_batches
        for rank, ledger in enumerate(self.ledgers):
            own = [
                replace(micro, total=shares[rank].total, items=shares[rank].items)
                for micro, shares in zip(window, parts, strict=True)
            ]
            ledger.replace(own, sum(micro.items for micro in own))


class KerasWorker(AllRanks):
    """The process of all ranks of Keras' distribution."""

    made = KerasFramework
    nothing_to_shard = (
        "a TensorLayout divides an axis into equal parts alone, and these ranks divide no axis of this model's "
        "variables evenly"
    )

    def divides(self, model: Model, ranks: Ranks) -> bool:
        return bool(divide_axes(model.parameter_shapes(), ranks.shards))

    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> DistributedTrainer:
        return self.framework.bind(DistributedTrainer(model, recipe, weights))


NAMES = ("norm.weight", "up.weight", "up.bias", "down.weight", "down.bias")
"""The parameters, in the order of the layers."""


def distribution(layout: MeshLayout, prefix: str = ".*") -> ModelParallel:
    """The distribution of a layout; `prefix` begins the patterns of its names."""
    devices = list_devices("cpu")
    grid = LayoutMap(DeviceMesh((2, 2), ("data", "model"), devices))
    grid[f"{prefix}up/kernel"] = (None, "model")
    grid[f"{prefix}up/bias"] = ("model",)
    grid[f"{prefix}down/kernel"] = ("model", None)
    if layout == "sequence":
        grid[f"{prefix}norm/output"] = ("data", "model", None)
    if layout == "two-meshes":
        grid[f"{prefix}norm/scale"] = TensorLayout(("all",), DeviceMesh((4,), ("all",), devices))
    return ModelParallel(layout_map=grid, batch_dim_name="data", auto_shard_dataset=False)


def half_square(targets: Any, outputs: Any) -> Any:
    """Half the squared errors of each row."""
    return 0.5 * keras.ops.sum((outputs - targets) ** 2, axis=(1, 2))


def make_block(weights: BlockWeights) -> keras.Model:
    """The block, in the open distribution."""
    width, hidden = weights["up.weight"].shape
    layers = (
        keras.layers.RMSNormalization(epsilon=0.0, name="norm"),
        keras.layers.Dense(hidden, "relu", name="up"),
        keras.layers.Dense(width, name="down"),
    )
    block = keras.Sequential([keras.Input((None, width)), *layers])
    block.set_weights([weights[name] for name in NAMES])
    return block


def values(block: keras.Model) -> dict[str, jax.Array]:
    """The block's weights."""
    return {name: variable.value for name, variable in zip(NAMES, block.trainable_variables, strict=True)}


def update(case: MeshCase) -> tuple[MeshUpdate, ...]:
    """Every device's view of an update; Keras reports no norm."""
    with distribution(case.layout).scope():
        block = make_block(case.weights)
        placements = {"build": read_axes(values(block))}
        block.compile(keras.optimizers.SGD(1.0, global_clipnorm=case.clip), half_square)
        block.train_on_batch(*case.samples)
        placements["update"] = read_axes(values(block))
        if case.folder is not None:
            block.save(case.folder / "block.keras")
            block = keras.models.load_model(case.folder / "block.keras", compile=False)
            placements["reload"] = read_axes(values(block))
        return tuple(MeshUpdate(read(values(block), device), None, "", placements) for device in jax.devices())


def reports_unknown_name(weights: BlockWeights) -> bool:
    """Whether a layout whose patterns match no variable raises or warns."""
    with warnings.catch_warnings(record=True) as reported, distribution("tensor", "no/such/").scope():
        warnings.simplefilter("always")
        make_block(weights).predict_on_batch(np.ones((4, 4, len(weights["down.bias"])), np.float32))
    return bool(reported)
