"""The loop of Keras' guide for JAX: stateless calls of model and optimizer under `jax.jit`, also distributed.

The network and the optimizer of a plan hold no state of a run. That state is a tuple of lists of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras.distribution import DataParallel, DeviceMesh, LayoutMap, ModelParallel, distribute_tensor

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Ranks, Recipe
from frameworks.jax.core import ways
from frameworks.jax.core.layers import count_call
from frameworks.jax.core.settings import divided_axis
from frameworks.jax.distributed import NOBODY, GatheredBatch
from frameworks.keras_common.layers import Begins, BuiltNetwork, NetworkBuilder, Outputs, collected_outputs, losses_of
from frameworks.keras_common.optimizers import OptimizerReadings, make_optimizer, read_optimizer
from frameworks.keras_common.run import KerasMicroBatch
from frameworks.keras_common.settings import dtype_policy, policy_of


class StatelessBackend:
    """Updates by `Optimizer.stateless_apply`, assigned to the variables."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""
        values, state = ([variable.value for variable in own] for own in (weights, optimizer.variables))
        arrays = [jnp.float32(gradient) for gradient in gradients]
        results = jax.jit(optimizer.stateless_apply)(state, arrays, values)
        for own, after in zip((weights, optimizer.variables), results, strict=True):
            for variable, value in zip(own, after, strict=True):
                variable.assign(value)


BACKEND = StatelessBackend()


_BEGUN: ContextVar[Callable[[int], object] | None] = ContextVar("begun", default=None)


@contextmanager
def counting(begun: Callable[[int], object]) -> Iterator[None]:
    """Within the context, traced passes call `begun` with a segment's number whenever its forward begins."""
    token = _BEGUN.set(begun)
    try:
        yield
    finally:
        _BEGUN.reset(token)


def counter(number: int | None) -> Begins:
    """Counts the forwards of a segment in passes that are traced within `counting`."""

    def begins(inputs: jax.Array) -> None:
        begun = _BEGUN.get()
        if begun is not None and number is not None:
            count_call(begun, number, inputs)

    return begins


class DeviceBatch(NamedTuple):
    """A micro-batch.

    Attributes:
        weights: weight of each loss by head, None if all are equal.
        owners: (N,) by head, the rank of each sample; None without ranks.
        items: number of items of all ranks.
    """

    inputs: Any
    targets: dict[str, Any]
    weights: dict[str, Any] | None
    owners: dict[str, Any] | None
    items: Any


def load_batch(batch: Batch) -> DeviceBatch:
    """The micro-batch of a run without ranks."""
    mask = None if batch.mask is None else dict.fromkeys(batch.targets, batch.mask)
    return DeviceBatch(batch.inputs, dict(batch.targets), mask, None, np.float32(batch.items))


def load_parts(batch: GatheredBatch) -> DeviceBatch:
    """The micro-batch of several ranks, in which padding has weight 0."""
    weights = {}
    for name, owners in batch.owners.items():
        own = (owners != NOBODY).astype(np.float32)
        weights[name] = own if batch.mask is None else batch.mask * own.reshape(-1, *[1] * (batch.mask.ndim - 1))
    return DeviceBatch(batch.inputs, dict(batch.targets), weights, dict(batch.owners), np.float32(batch.items))


Distribution: TypeAlias = DataParallel | ModelParallel

BATCH, MODEL = "batch", "model"
"""Axes of the mesh, as Keras' documentation names them: copies of the model, and the parts of one copy."""


def distribution_of(ranks: Ranks, shapes: Mapping[str, tuple[int, ...]]) -> Distribution:
    """The distribution over `ranks.count` devices of the CPU; the devices of a row share one copy.

    Args:
        shapes: shape of each sharded variable by path. A variable without an evenly divisible axis is replicated,
            because a `TensorLayout` accepts no uneven division.
    """
    devices = keras.distribution.list_devices("cpu")[: ranks.count]
    if ranks.level == "replicated":
        return DataParallel(devices=devices)
    mesh = DeviceMesh((ranks.replicas, ranks.shards), (BATCH, MODEL), devices)
    layouts = LayoutMap(mesh)
    for path, axes in divide_axes(shapes, ranks.shards).items():
        layouts[path] = axes
    return ModelParallel(layout_map=layouts, batch_dim_name=BATCH)


def divide_axes(shapes: Mapping[str, tuple[int, ...]], parts: int) -> dict[str, tuple[str | None, ...]]:
    """The mesh axis of each axis of a variable, for the variables that can be divided."""
    result = {}
    for path, shape in shapes.items():
        if (axis := divided_axis(shape, parts)) is not None:
            result[path] = tuple(MODEL if index == axis else None for index in range(len(shape)))
    return result


Values = list[jax.Array]
Tree = TypeVar("Tree")

PLAN_CACHE_SIZE = 64
"""Number of plans whose compiled programs are cached; each has programs for all shapes so far."""


class State(NamedTuple):
    """The state of a run between two steps.

    Attributes:
        trained: the network's trainable variables.
        others: the network's other variables: running statistics and states of seed generators.
        optimizer: all variables of the optimizer.
    """

    trained: Values
    others: Values
    optimizer: Values


class KerasOutcome(NamedTuple):
    """Result of one micro-batch: the optimizer before and after it, and the gradients if ranks shard them."""

    before: OptimizerReadings
    after: OptimizerReadings
    gradients: Values


class KerasSteps:
    """The network and the optimizer of a model and a recipe, and the functions of a run, compiled when first called.

    Attributes:
        variables: the Keras variables, in the order of `State`.
        start: the initial state of these variables, with zero kernels.
        places: index of each parameter among the trainable variables, by canonical name in model order.
    """

    def __init__(self, model: Model, recipe: Recipe) -> None:
        self.model = model
        self.recipe = recipe
        self.distribution = self._distribution()
        self.count = 1 if recipe.ranks is None else recipe.ranks.count
        with self.scope():
            self.bound, self.optimizer = self._build_network()
            network = self.bound.network
            trained = network.trainable_variables
            self.variables = (trained, network.non_trainable_variables, self.optimizer.variables)
            self.start = State(*([variable.value for variable in own] for own in self.variables))
        numbers = {id(variable): index for index, variable in enumerate(trained)}
        self.places = {name: numbers[id(variable)] for name, variable in self.bound.variables.items()}
        self._losses, self._item_losses = losses_of(model, "sum"), losses_of(model, "none")
        self.train = jax.jit(self._train)
        self.backward = jax.jit(self._backward)
        self.traced = jax.jit(self._trace_layers)
        self.apply_gradients = jax.jit(self._feed)
        self.predict = jax.jit(self._predict)
        self.look = jax.jit(self._look)

    def _build_network(self) -> tuple[BuiltNetwork, keras.optimizers.Optimizer]:
        with dtype_policy(policy_of(self.recipe.precision)):
            bound = NetworkBuilder(counter).build(self.model, self.recipe.seed, self.recipe.recompute)
        optimizer = make_optimizer(self.recipe, bound.variables, BACKEND, name="optimizer")
        optimizer.build(bound.network.trainable_variables)
        return bound, optimizer

    def _distribution(self) -> Distribution | None:
        ranks = self.recipe.ranks
        if ranks is None:
            return None
        bound, optimizer = self._build_network()
        sharded = bound.network.trainable_variables if ranks.level == "full" else optimizer.variables
        return distribution_of(ranks, {variable.path: tuple(variable.shape) for variable in sharded})

    def scope(self) -> AbstractContextManager[Any]:
        """The context of the run's calls of Keras, which sets its distribution for the process."""
        return nullcontext() if self.distribution is None else self.distribution.scope()

    # placement of arrays

    def arrange_weights(self, weights: Mapping[str, Array]) -> list[Array]:
        """Canonical weights in the shapes, formats and order of the trainable variables.

        Raises:
            ValueError: see `BuiltNetwork.in_keras_shapes`.
        """
        values = self.bound.in_keras_shapes(weights)
        by_place = {index: values[name] for name, index in self.places.items()}
        formats = [jnp.dtype(variable.dtype) for variable in self.variables[0]]
        return [by_place[index].astype(own) for index, own in enumerate(formats)]

    def put(self, values: State) -> State:
        """A state with the shardings that Keras gives its variables."""
        return jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), values, self.start)

    def _with_sharding(self, values: Tree, like: Tree) -> Tree:
        """The values with the shardings of `like`, within a compiled function."""
        if self.distribution is None:
            return values
        return jax.tree.map(lambda value, own: distribute_tensor(value, own.sharding), values, like)

    def _split_across_ranks(self, tree: Tree) -> Tree:
        """A batch that is divided over the devices by its first axis, as the distribution divides data."""
        if self.distribution is None:
            return tree
        layout = self.distribution.get_data_layout
        return jax.tree.map(lambda leaf: distribute_tensor(leaf, layout(leaf.shape)) if leaf.ndim else leaf, tree)

    def _whole(self, tree: Tree) -> Tree:
        """Arrays that are replicated on every device."""
        if self.distribution is None:
            return tree
        mesh = self.distribution.device_mesh

        def everywhere(leaf: Any) -> Any:
            return distribute_tensor(leaf, keras.distribution.TensorLayout([None] * leaf.ndim, mesh))

        return jax.tree.map(everywhere, tree)

    # inside compiled functions

    def _optimizing(self, optimizer: Values) -> AbstractContextManager[Any]:
        """A scope in which the optimizer's variables have these values."""
        return keras.StatelessScope(state_mapping=list(zip(self.optimizer.variables, optimizer, strict=True)))

    def _look(self, optimizer: Values) -> OptimizerReadings:
        with self._optimizing(optimizer):
            scale, updates, rate, good = read_optimizer(self.optimizer)
            return OptimizerReadings(
                jnp.asarray(scale, jnp.float32), jnp.asarray(updates), jnp.asarray(rate), jnp.asarray(good, jnp.int32)
            )

    def _scale_loss(self, optimizer: Values, losses: Sequence[jax.Array]) -> Values:
        with self._optimizing(optimizer):
            return [self.optimizer.scale_loss(loss) for loss in losses]

    def losses(self, trained: Values, others: Values, batch: DeviceBatch) -> tuple[Values, tuple[Values, Values]]:
        """Training-mode losses over the items, with the sums of losses and the changed variables.

        Returns:
            The sum of the losses, or one for each head if they go backward separately; the sum of the items' losses of
            each head, (ranks,) if there are ranks; and the network's other variables after the pass.
        """
        outputs, after = self.bound.network.stateless_call(trained, others, batch.inputs, training=True)
        heads = [name for name, _ in self.model.losses if name in batch.targets]
        weights = batch.weights or {}
        totals = [self._losses[n](batch.targets[n], outputs[n], sample_weight=weights.get(n)) for n in heads]
        widest = reduce(jnp.promote_types, (total.dtype for total in totals))
        means = [keras.ops.divide_no_nan(total.astype(widest), batch.items.astype(widest)) for total in totals]
        sums = totals if batch.owners is None else [self._sums_of_ranks(name, outputs[name], batch) for name in heads]
        return means if self.recipe.separate_losses else [reduce(jnp.add, means)], (sums, after)

    def _sums_of_ranks(self, name: str, output: jax.Array, batch: DeviceBatch) -> jax.Array:
        """(ranks,): the sum of the losses of each rank's items."""
        assert batch.owners is not None
        losses = self._item_losses[name](batch.targets[name], output, sample_weight=(batch.weights or {}).get(name))
        owners = jnp.expand_dims(batch.owners[name], tuple(range(1, losses.ndim)))
        return jnp.stack([jnp.sum(losses, where=owners == rank) for rank in range(self.count)])

    def _gradients(self, state: State, batch: DeviceBatch) -> tuple[Values, Values, Values]:
        """Scaled gradients, sums of losses, and the other variables after the pass."""

        def scale_losses(trained: Values) -> tuple[Values, tuple[Values, Values]]:
            means, rest = self.losses(trained, state.others, batch)
            return self._scale_loss(state.optimizer, means), rest

        gradients, (sums, after) = ways.gradients("", scale_losses, state.trained)
        return _sum(gradients), sums, after

    def _train(self, state: State, batch: DeviceBatch) -> tuple[State, KerasOutcome, Values]:
        """Forward, backward and the optimizer's step of one micro-batch; and its sums of losses."""
        gradients, sums, others = self._gradients(state, self._split_across_ranks(batch))
        after, outcome = self._apply_step(state._replace(others=others), gradients)
        return after, outcome, self._whole(sums)

    def _apply_step(self, state: State, gradients: Values) -> tuple[State, KerasOutcome]:
        gradients = self._with_sharding(gradients, self.start.trained)
        trained, optimizer = self.optimizer.stateless_apply(state.optimizer, gradients, state.trained)
        after = self._with_sharding(State(trained, state.others, optimizer), self.start)
        outcome = KerasOutcome(
            self._look(state.optimizer), self._look(optimizer), gradients if self.distribution else []
        )
        return after, outcome

    def _backward(self, state: State, batch: DeviceBatch) -> tuple[Values, Values]:
        """Unscaled gradients of one micro-batch, and the other variables after the pass."""
        gradients, _, others = self._gradients(state, self._split_across_ranks(batch))
        return self._unscale_gradients(state.optimizer, gradients), others

    def _unscale_gradients(self, optimizer: Values, gradients: Values) -> Values:
        """Gradients divided by the scale as the optimizer does, in their own formats."""
        scale = self._look(optimizer).scale
        return [keras.ops.divide(gradient, scale).astype(gradient.dtype) for gradient in gradients]

    def _feed(self, state: State, gradients: Mapping[str, jax.Array]) -> tuple[State, KerasOutcome]:
        """The optimizer's step of the back-propagated scaled Σ p·g over the parameters in `gradients`.

        With ranks, `gradients` have (ranks, *shape), and the step is that of their mean.
        """

        def scale_sum(trained: Values) -> jax.Array:
            parts = self._split_across_ranks(dict(gradients)).items()
            products = [trained[self.places[name]].astype(g.dtype) * g for name, g in parts]
            total = reduce(jnp.add, [jnp.sum(product).astype(jnp.float32) for product in products], jnp.zeros(()))
            return self._scale_loss(state.optimizer, [total / self.count])[0]

        return self._apply_step(state, jax.grad(scale_sum)(state.trained))

    def _predict(self, trained: Values, others: Values, inputs: jax.Array) -> dict[str, jax.Array]:
        outputs, _ = self.bound.network.stateless_call(trained, others, inputs, training=False)
        return self._whole(outputs)

    def _trace_layers(self, state: State, batch: DeviceBatch) -> tuple[Outputs, Outputs, Values, Values]:
        """Output of every layer by the name of its Keras layer, the unscaled parameters' and these outputs' gradients.

        The last result is the other variables after the pass.
        """

        def shapes(trained: Values) -> Outputs:
            with collected_outputs() as outputs:
                self.losses(trained, state.others, batch)
            return outputs

        zeros = {n: jnp.zeros(s.shape, s.dtype) for n, s in jax.eval_shape(shapes, state.trained).items()}

        def scale_losses(primals: tuple[Values, Outputs]) -> tuple[Values, tuple[Outputs, Values]]:
            with collected_outputs(primals[1]) as outputs:
                means, (_, after) = self.losses(primals[0], state.others, batch)
            return self._scale_loss(state.optimizer, means), (outputs, after)

        gradients, (outputs, after) = ways.gradients("", scale_losses, (state.trained, zeros))
        of_parameters, of_outputs = _sum(gradients)
        return outputs, of_outputs, self._unscale_gradients(state.optimizer, of_parameters), after

    def runs_in_a_pass(self, state: State, batch: DeviceBatch) -> tuple[int, ...]:
        """The number of forwards of each segment in one forward and backward pass.

        The pass is that of `backward`, with a callback at the beginning of each segment.
        """
        begun: list[int] = []
        with counting(begun.append):
            jax.block_until_ready(jax.jit(lambda *args: self._backward(*args))(state, batch))
            jax.effects_barrier()
        return tuple(begun.count(number) for number in range(len(self.bound.network.segments)))

    def read_average(self, state: State) -> Values:
        """The trainable variables after the optimizer has overwritten them with their average."""
        variables = self.bound.network.trainable_variables
        values = zip([*variables, *self.optimizer.variables], [*state.trained, *state.optimizer], strict=True)
        with keras.StatelessScope(state_mapping=list(values)) as scope:
            self.optimizer.finalize_variable_values(variables)
        return [scope.get_current_value(variable) for variable in variables]


def _sum(gradients: Sequence[Any]) -> Any:
    """The sum of the gradients of all losses, each by a separate backward pass."""
    return reduce(lambda a, b: jax.tree.map(jnp.add, a, b), gradients)


@lru_cache(PLAN_CACHE_SIZE)
def steps_of(model: Model, recipe: Recipe, device: jax.Device) -> KerasSteps:
    """The functions of a model and a recipe, shared by all runs of both on a device."""
    with jax.default_device(device):
        return KerasSteps(model, recipe)


def micro_batch(outcome: KerasOutcome, total: float, items: int) -> KerasMicroBatch:
    """Converts the result of a micro-batch of `items` items, whose losses have this sum."""
    before, after = (
        OptimizerReadings(*(np.asarray(value).item() for value in values)) for values in (outcome.before, outcome.after)
    )
    applied = after.updates > before.updates
    return KerasMicroBatch(total, items, before.scale, applied, before.rate, after.scale, after.good)
