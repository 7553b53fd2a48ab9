"""Keras on JAX as a framework of the suite, and one training run with its state outside of the variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as ocp

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, BaseRankGroup, RankGroupTrainer, traced_paths, unscaled_in_trace, with_ranks
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    LayerTrace,
    Meshes,
    OpResult,
    RecomputeCase,
    RecomputeResult,
    Unsupported,
)
from frameworks.jax.core.settings import (
    KERAS,
    NO_PEAK,
    REFUSED_RANKS,
    OnDevice,
    device_workers,
    has_peak,
    peak_bytes,
    rank_group,
    saved_bytes,
    wide_formats,
)
from frameworks.jax.keras.steps import (
    BACKEND,
    DeviceBatch,
    KerasOutcome,
    State,
    Values,
    load_batch,
    micro_batch,
    steps_of,
)
from frameworks.jax.training.steps import differentiate_case
from frameworks.keras_common.framework import NO_LISTS, REFUSED, SUPPORTED, ScopeOfPolicies, keras_attempts
from frameworks.keras_common.optimizers import scaler_settings
from frameworks.keras_common.run import COLUMNS, KerasMicroBatch, KerasRun, micro_batches_of, rows_of
from frameworks.keras_common.settings import read_settings, write_settings
from frameworks.ranks import RemoteMeshes

FOLDER = "run"


INSIDE_RECOMPUTED = "nothing outside keras.remat may refer to what is computed inside: JAX raises UnexpectedTracerError"


def shows_recomputed() -> bool:
    """Returns whether intermediate values of a recomputed function, and the gradients for them, can be read."""

    def step(zero: jax.Array) -> tuple[jax.Array, jax.Array]:
        inside = []

        def function(x: jax.Array) -> jax.Array:
            inside.append(jnp.tanh(x) + zero)
            return 2.0 * inside[-1]

        value = jnp.sum(keras.remat(function)(jnp.ones((2,))))
        return value, inside[0]

    gradient, output = jax.jit(jax.grad(step, has_aux=True))(jnp.zeros((2,)))
    return bool((gradient == 2.0).all() and (output == jnp.tanh(1.0)).all())


class StatelessRun(KerasRun):
    """One run.

    Attributes:
        run_state: all arrays of the run.
        outcome: result of the last micro-batch.
    """

    def __init__(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: jax.Device) -> None:
        self._device = device
        self._wide = any(head.format == "float64" for head in model.heads.heads)
        self._passes = 0
        self._loaded: DeviceBatch | None = None
        self.outcome: KerasOutcome | None = None
        with wide_formats(self._wide):
            self.steps = steps_of(model, recipe, device)
        super().__init__(model, recipe, self.steps.bound, self.steps.optimizer)
        with self.scope():
            native = self.steps.arrange_weights(model.weights(recipe.seed) if weights is None else weights)
            self.run_state = self.steps.put(self.steps.start._replace(trained=native))
        self._places = {
            id(variable): (kind, index)
            for kind, own in enumerate(self.steps.variables)
            for index, variable in enumerate(own)
        }

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The context of the run's calls: float64 where a head has it, the device, and Keras' distribution."""
        with wide_formats(self._wide), jax.default_device(self._device), self.steps.scope():
            yield

    def get_array(self, variable: keras.Variable) -> jax.Array:
        """The run's array for a variable."""
        kind, index = self._places[id(variable)]
        return self.run_state[kind][index]

    def value(self, variable: keras.Variable) -> Array:
        return np.array(self.get_array(variable))

    def applied_updates(self) -> Array:
        with self.scope():
            return np.array(self.steps.look(self.run_state.optimizer).updates)

    # forward, backward and update

    def _load(self, batch: Batch) -> DeviceBatch:
        self._passes += 1
        self._loaded = load_batch(batch)
        return self._loaded

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            self.run_state, self.outcome, sums = self.steps.train(self.run_state, self._load(batch))
            return self.enter(self._micro_batch(sum(total.item() for total in sums), batch.items))

    def _micro_batch(self, total: float, items: int) -> KerasMicroBatch:
        assert self.outcome is not None
        return micro_batch(self.outcome, total, items)

    def feed_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        self.run_state, self.outcome = self.steps.apply_gradients(self.run_state, gradients)
        return self._micro_batch(math.nan, 1)

    def gradients(self, window: Window) -> dict[str, Array]:
        return self.canonical(self.window_gradients(window))

    def window_gradients(self, window: Window) -> Values:
        """The mean of the micro-batches' unscaled gradients, in the order of Keras' variables."""
        result = []
        with self.scope():
            for batch in window:
                gradients, others = self.steps.backward(self.run_state, self._load(batch))
                self.run_state = self.run_state._replace(others=others)
                result.append(gradients)
            count = len(result)
            return [reduce(jax.numpy.add, own) / np.asarray(count, own[0].dtype) for own in zip(*result, strict=True)]

    # state of the run

    def canonical(self, values: Sequence[jax.Array]) -> dict[str, Array]:
        """Arrays in the order of Keras' trainable variables, by canonical name in canonical shape."""
        return {name: self.bound.canonical(name, values[index]) for name, index in self.steps.places.items()}

    def scaler_settings(self) -> dict[str, float]:
        return scaler_settings(self.optimizer, BACKEND)

    def predict(self, inputs: Array) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.outputs(self.run_state.trained, inputs).items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.outputs(self.averages(), inputs).items()}

    def averages(self) -> Values:
        """The averaged trainable variables, by `Optimizer.finalize_variable_values`.

        Raises:
            ValueError: the recipe asks for no average.
        """
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        with self.scope():
            return self.steps.read_average(self.run_state)

    def outputs(self, trained: Values, inputs: Array) -> dict[str, jax.Array]:
        """Evaluation-mode forward with these trainable variables: output by head name."""
        with self.scope():
            return self.steps.predict(trained, self.run_state.others, inputs)

    # readings of a pass

    def segment_calls(self) -> tuple[int, ...]:
        """Forwards of each segment: the counts of one pass on the last batch, times the number of passes so far."""
        if self._loaded is None:
            return (0,) * len(self.bound.network.segments)
        with self.scope():
            counts = self.steps.runs_in_a_pass(self.run_state, self._loaded)
        return tuple(self._passes * runs for runs in counts)

    def saved_bytes(self, batch: Batch) -> int:
        with self.scope():
            loaded = jax.device_put(load_batch(batch), self._device)
            trained = {f"{index:04}": value for index, value in enumerate(self.run_state.trained)}

            def losses(leaves: dict[str, jax.Array]) -> Values:
                return self.steps.losses(list(leaves.values()), self.run_state.others, loaded)[0]

            return saved_bytes(losses, trained, loaded)

    def trace(self, batch: Batch) -> LayerTrace:
        if self.recipe.recompute is not None:
            raise Unsupported(Capability.TRACE, INSIDE_RECOMPUTED, shows_recomputed)
        with self.scope():
            outputs, gradients, parameters, others = self.steps.traced(self.run_state, self._load(batch))
            scale = float(self.steps.look(self.run_state.optimizer).scale)
        self.run_state = self.run_state._replace(others=others)
        layers, paths = self.bound.layers, traced_paths(self.model, batch)
        return LayerTrace(
            {path: np.array(outputs[layers[path]]) for path in paths},
            {path: unscaled_in_trace(np.array(gradients[layers[path]]), scale) for path in paths},
            self.canonical(parameters),
        )

    def peak_bytes(self) -> int:
        if (peak := peak_bytes(self._device)) is None:
            raise self.refusal(Capability.PEAK_BYTES)
        return peak

    # the whole run

    def _tree(self, window: Sequence[KerasMicroBatch]) -> dict[str, Any]:
        """Every array of the run by a name, and the open window, (micro-batches, COLUMNS)."""
        named = {
            kind: {f"{i}-{variable.name}": value for i, (variable, value) in enumerate(zip(own, values, strict=True))}
            for kind, own, values in zip(State._fields, self.steps.variables, self.run_state, strict=True)
        }
        rows = np.zeros((self.recipe.accumulation, COLUMNS))
        rows[: len(window)] = rows_of(window)
        nonempty = {kind: values for kind, values in named.items() if values}
        return {**nonempty, "window": {"rows": rows, "count": np.array(len(window))}}

    def save(self, path: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute() / FOLDER, self._tree(self.ledger.micro_batches), force=True)

    def restore(self, path: Path) -> None:
        folder, like = path.absolute() / FOLDER, self._tree([])
        try:
            with self.scope(), ocp.StandardCheckpointer() as checkpointer:
                run = checkpointer.restore(folder, like)
        except Exception as error:  # Orbax raises `Exception` itself for some unreadable files
            raise ValueError(f"{folder} cannot be restored: {' '.join(str(error).split())}") from error
        window = micro_batches_of(run["window"]["rows"][: int(run["window"]["count"])])
        self.run_state = State(*([run[kind][name] for name in like.get(kind, ())] for kind in State._fields))
        self.ledger.replace(window, sum(micro.items for micro in window))


_LAYOUT = (
    "Keras makes an optimizer's variables with the layout of their weight, and a LayoutMap's entries do not matter"
)
_REFUSED: dict[Capability, str] = {
    **REFUSED,
    Capability.AUTOCAST_LISTS: NO_LISTS,
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a variable that the loss does not reach, never nothing",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: NO_PEAK,
    Capability.RANKS_OPTIMIZER: _LAYOUT,
    Capability.RANKS_GRADIENTS: _LAYOUT,
    Capability.RANKS_LOW_REDUCTION: "under jax.jit the compiler places the reduction over the devices, in the format "
    "of the gradient, and keras.distribution has no setting for another one",
    **REFUSED_RANKS,
}


def _misses() -> bool:
    """Returns whether JAX gives no gradient for a weight on which the loss does not depend."""
    gradients: list[Any] = jax.grad(lambda own: 2.0 * own[0])([jnp.ones(()), jnp.ones(())])
    return gradients[1] is None


_rank_group = partial(rank_group, mode=KERAS)


class KerasFramework(ScopeOfPolicies, OnDevice):
    """Training with Keras alone: mode "keras"."""

    own_modes = (KERAS,)

    def version(self) -> str:
        return f"{jax.__version__}+keras.{version('keras')}"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"keras": version("keras"), "keras-backend": keras.config.backend()}

    def refusals(self) -> Mapping[Capability, str]:
        return _REFUSED | (_CPU_REFUSED if self.device == "cpu" else {})

    def supported_capabilities(self) -> Collection[Capability]:
        meshes = {Capability.RANKS_TENSOR, Capability.RANKS_SEQUENCE} if self.device == "cpu" else set()
        return SUPPORTED | {Capability.SAVED_BYTES} | meshes

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        workers = partial(device_workers, 4, KERAS)
        return {**super().rules(), Meshes: partial(RemoteMeshes, workers, "frameworks.jax.keras.mesh")}

    def attempts(self) -> Mapping[Capability, Attempt]:
        of_arrays = keras_attempts(BACKEND, self._run)
        of_arrays |= {Capability.MISSING_GRADIENTS: _misses, Capability.PEAK_BYTES: has_peak}
        result: dict[Capability, Attempt] = {c: partial(self.on_device, attempt) for c, attempt in of_arrays.items()}
        return result if self.device != "cpu" else with_ranks(result, _rank_group, None)

    def conventions(self) -> Conventions:
        return replace(super().conventions(), batch_statistics="whole", compiled=True)

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        self.require_recipe(recipe)
        return _rank_group(model, recipe, weights)

    def trainer(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
    ) -> StatelessRun | RankGroupTrainer:
        self.require_recipe(recipe)
        if recipe.ranks is not None:
            return self.bind(RankGroupTrainer(_rank_group(model, recipe, weights)))
        return self.bind(self._run(model, recipe, weights))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> StatelessRun:
        return StatelessRun(model, recipe, weights, self._place)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        with jax.default_device(self._place), wide_formats(any(array.dtype == np.float64 for array in arrays)):
            return super().run_op(op, *arrays)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        with jax.default_device(self._place):
            return differentiate_case(case, x, w, self.remat(variant), self._place)

    def global_state(self) -> dict[str, str]:
        return super().global_state() | read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        own = read_settings()
        super().restore_global_state({name: value for name, value in state.items() if name not in own})
        write_settings(state)
