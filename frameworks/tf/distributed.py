"""One training run of several replicas, as in TensorFlow's guide to custom training.

Each replica divides its sum of losses by the items of all replicas; `optimizer.apply` sums the gradients.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.contract import Gradients
from frameworks.keras_common.layers import BuiltNetwork, losses_of
from frameworks.keras_common.optimizers import ACCUMULATOR, AVERAGE
from frameworks.keras_common.run import KerasMicroBatch, RunOfRanks
from frameworks.tf.core.settings import pin_threads
from frameworks.tf.core.steps import TracedSteps, as_array, micro_batch
from frameworks.tf.framework import TensorFlowFramework
from frameworks.tf.training import TensorFlowTrainer
from frameworks.ways import require_calls

THREADS_PER_RANK = 16
"""Number of threads for each rank: a reduction blocks a thread of each replica, and deadlocks with too few."""


class Share(NamedTuple):
    """Weights of a replica's losses, in place of a mask.

    Attributes:
        items: number of items of all replicas.
        weights: (N,) or (N, length) for each head, the weight of each loss; empty if all are equal.
    """

    items: Any
    weights: dict[str, Any]


class MirroredSteps(TracedSteps):
    """The functions of one run, which all replicas of a strategy run together."""

    def __init__(self, strategy: tf.distribute.Strategy, model: Model, bound: BuiltNetwork, *args: Any) -> None:
        self._strategy = strategy
        self._item_losses = losses_of(model, "none")
        super().__init__(model, bound, *args)

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return int(self._strategy.num_replicas_in_sync)

    def _compile(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return super()._compile(lambda *args: self._strategy.run(step, args))

    # inputs and results of replicas

    def train_parts(self, parts: Sequence[Batch]) -> list[KerasMicroBatch]:
        """`train` with each replica's part of a micro-batch; returns the result by replica."""
        items = sum(part.items for part in parts)
        outcomes = self.per_rank(self._train(*self._split_across_ranks(arguments_of(self._model, parts))))
        return [_make_replica_result(outcome, part.items, items) for outcome, part in zip(outcomes, parts, strict=True)]

    def gradients_of_parts(self, parts: Sequence[Batch]) -> list[dict[str, tf.Tensor]]:
        """`gradients` of a micro-batch of which each replica has a part: the reduced gradients on each replica."""
        return self.per_rank(self._gradients(*self._split_across_ranks(arguments_of(self._model, parts))))

    def feed_parts(self, parts: Sequence[Mapping[str, Array]]) -> list[KerasMicroBatch]:
        """`apply_gradients` with different gradients for each replica; the micro-batch's gradient is their mean."""
        outcomes = self.per_rank(self._feed(*self._split_across_ranks([(self._to_tensors(own),) for own in parts])))
        return [replace(micro_batch(outcome, 1), total=math.nan, mean=math.nan) for outcome in outcomes]

    def outputs(self, inputs: Array) -> list[dict[str, tf.Tensor]]:
        """The outputs of `predict` on each replica."""
        return self.per_rank(self.predict(inputs))

    def _split_across_ranks(self, arguments: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """The arguments of a function as per-replica values."""
        parts: tuple[Any, ...] = self._strategy.experimental_distribute_values_from_function(
            lambda context: arguments[context.replica_id_in_sync_group]
        )
        return parts

    def per_rank(self, value: Any) -> list[Any]:
        """Splits a structure of per-replica values into one structure for each replica."""
        flat = [self._strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(value)]
        return [tf.nest.pack_sequence_as(value, list(own)) for own in zip(*flat, strict=True)]

    # inside a replica

    def _head_losses(self, inputs: Any, targets: Mapping[str, Any], mask: Share) -> dict[str, tf.Tensor]:
        outputs = self._bound.network(inputs, training=True)
        return {
            name: tf.nn.compute_average_loss(
                self._item_losses[name](targets[name], outputs[name]), mask.weights.get(name), mask.items
            )
            for name, _ in self._model.losses
            if name in targets
        }

    def _surrogate(self, gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return super()._surrogate(gradients) / self.replicas

    def _divide_by_scale(self, gradients: Iterable[tuple[str, Any]]) -> dict[str, tf.Tensor]:
        own = super()._divide_by_scale(gradients)
        context = tf.distribute.get_replica_context()
        return dict(zip(own, context.all_reduce(tf.distribute.ReduceOp.SUM, list(own.values())), strict=True))


def _make_replica_result(outcome: tuple[Any, ...], own: int, items: int) -> KerasMicroBatch:
    """The result of a replica that has `own` of the micro-batch's items; `mean` is the mean over these."""
    micro = micro_batch(outcome, items)
    return replace(micro, items=own, mean=micro.total / own if own else math.nan)


def arguments_of(model: Model, parts: Sequence[Batch]) -> list[tuple[Any, ...]]:
    """Inputs, targets and share of each replica.

    All replicas need the same heads: if a part has no targets for a head, its losses have weight 0.
    """
    heads = [name for name, _ in model.losses if any(name in part.targets for part in parts)]
    like = {name: next(part.targets[name] for part in parts if name in part.targets) for name in heads}
    masked = next((part.mask for part in parts if part.mask is not None), None)
    weighted = masked is not None or any(name not in part.targets for name in heads for part in parts)
    items = tf.constant(sum(part.items for part in parts), tf.int64)
    result = []
    for part in parts:
        targets, weights = {}, {}
        for name in heads:
            nothing = np.zeros((len(part), *like[name].shape[1:]), like[name].dtype)
            targets[name] = tf.convert_to_tensor(part.targets.get(name, nothing))
            if weighted:
                every = np.ones((len(part), *(() if masked is None else masked.shape[1:])), np.float32)
                own = every if part.mask is None else part.mask.astype(np.float32)
                weights[name] = tf.convert_to_tensor(own if name in part.targets else np.zeros_like(own))
        result.append((tf.convert_to_tensor(part.inputs), targets, Share(items, weights)))
    return result


class MirroredTrainer(RunOfRanks, TensorFlowTrainer):
    """A run whose variables are mirrored on every replica; the copy of a replica is read in its replica context."""

    loop: MirroredSteps
    read = frozenset(
        {
            "parameters",
            "master_parameters",
            "optimizer_state",
            "buffers",
            "scaler_state",
            "accumulator",
            "random_state",
            "state",
            "segment_calls",
            "resident_bytes",
        }
    )

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: Model,
        recipe: Recipe,
        weights: Mapping[str, Array] | None,
        *,
        mode: str,
        policy: str,
    ) -> None:
        self.strategy = strategy
        self.count = int(strategy.num_replicas_in_sync)
        super().__init__(model, recipe, weights, mode=mode, policy=policy, rewrite=None, device="/CPU:0")

    def _made_steps(self) -> TracedSteps:
        return MirroredSteps(self.strategy, self.model, self.bound, self.optimizer, self.mode, self.recipe)

    @contextmanager
    def scope(self) -> Iterator[None]:
        with self.strategy.scope():
            yield

    # data of each replica

    def accumulate_parts(self, parts: Sequence[Batch]) -> tuple[float, ...]:
        with self.scope():
            return self.record_by_rank(self.loop.train_parts(parts))

    def feed_part(self, parts: Sequence[Gradients]) -> None:
        self.record_by_rank(self.loop.feed_parts(self._with_zeros([self.convert_gradients(own) for own in parts])))

    def _with_zeros(self, parts: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """The gradients, with zeros for missing ones: all replicas need the same keys."""
        merged = {name: value for own in parts for name, value in own.items()}
        names = [name for name in self.bound.variables if name in merged]
        return [{name: own.get(name, np.zeros_like(merged[name])) for name in names} for own in parts]

    def gradients_of_parts(self, windows: Sequence[Window]) -> tuple[dict[str, Array], ...]:
        with self.scope():
            result = [self.loop.gradients_of_parts(parts) for parts in zip(*windows, strict=True)]
        return tuple(self.mean(own) for own in zip(*result, strict=True))

    def predictions(self, inputs: Array) -> tuple[dict[str, Array], ...]:
        with self.scope():
            outputs = self.loop.outputs(inputs)
        return tuple({name: np.array(output.numpy()) for name, output in own.items()} for own in outputs)

    # state of each replica

    def by_rank(self, verb: str) -> tuple[Any, ...]:
        result: dict[int, Any] = {}

        def read() -> None:
            result[int(tf.distribute.get_replica_context().replica_id_in_sync_group)] = getattr(self, verb)()

        self.strategy.run(read)
        return tuple(result[rank] for rank in range(self.count))

    def resident_bytes(self) -> dict[str, int]:
        """Bytes that this replica holds; without accumulators, gradients are those of an update."""
        slots = {slot: as_array(variable).nbytes for slot, variable in self.slots.items()}
        parameters = sum(as_array(variable).nbytes for variable in self.bound.variables.values())
        sums = sum(size for slot, size in slots.items() if slot.startswith(ACCUMULATOR))
        averages = sum(size for slot, size in slots.items() if slot.startswith(AVERAGE))
        return {
            "parameter": parameters,
            "gradient": sums or parameters,
            "optimizer": sum(slots.values()) - sums - averages,
            "buffer": sum(as_array(variable).nbytes for variable in self.bound.buffers.values()),
        }


class MirroredWorker:
    """The process of all ranks, with their strategy.

    Raises:
        RuntimeError: TensorFlow has started with other devices.
    """

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        (processor,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * count)
        pin_threads(THREADS_PER_RANK * count)
        self._devices = [f"/CPU:{index}" for index in range(count)]
        self._usual = tf.distribute.MirroredStrategy(self._devices)
        self.framework = TensorFlowFramework(device, mode)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> MirroredTrainer:
        """A new run of all ranks.

        Raises:
            ValueError: the recipe is for another number of ranks.
        """
        count = len(self._devices)
        if recipe.ranks is None or recipe.ranks.count != count:
            raise ValueError(f"ranks of the recipe: got {recipe.ranks}, want {count}")
        policy = self.framework.policy(recipe.precision)
        way = recipe.way("data-parallel")
        mode = "xla" if way == "compiled" else self.framework.mode
        with require_calls("tf", recipe, "data-parallel"):
            run = MirroredTrainer(self._strategy(way), model, recipe, weights, mode=mode, policy=policy)
        return self.framework.bind(run)

    def _strategy(self, way: str) -> tf.distribute.Strategy:
        options = {
            "hierarchical-copy": tf.distribute.HierarchicalCopyAllReduce,
            "one-device": tf.distribute.ReductionToOneDevice,
        }
        if way not in options:
            return self._usual
        return tf.distribute.MirroredStrategy(self._devices, cross_device_ops=options[way]())

    def barrier(self) -> None:
        """Returns at once: all ranks are in this process."""
