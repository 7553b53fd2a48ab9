"""One training run with Keras on JAX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import jax
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, BaseTrainer, LossLedger, ending, traced_paths, unscaled_in_trace
from frameworks.contract import Capability, Gradients, LayerTrace, Unsupported, Update
from frameworks.jax.arrays import wide_formats
from frameworks.jax.keras import checkpoint
from frameworks.jax.keras.declarations import INSIDE_RECOMPUTED
from frameworks.jax.keras.losses import Loaded, load_batch
from frameworks.jax.keras.optimizers import ACCUMULATOR
from frameworks.jax.keras.probes import shows_recomputed
from frameworks.jax.keras.scaler import scaler_settings
from frameworks.jax.keras.steps import KerasMicroBatch, KerasOutcome, Values, micro_batch, steps_of
from frameworks.jax.saved_bytes import saved_bytes
from frameworks.keras_parts.optimizers import slots
from frameworks.keras_parts.scaler import inner_of, scaler_state


class KerasTrainer(BaseTrainer):
    """One run. Keras ends a window itself with the k-th micro-batch, so `apply` only reports.

    Attributes:
        held: all arrays of the run.
        outcome: result of the last micro-batch.
    """

    def __init__(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: jax.Device) -> None:
        self.model = model
        self.recipe = recipe
        self._device = device
        self._wide = any(head.format == "float64" for head in model.heads.heads)
        self._passes = 0
        self._seen: Loaded | None = None
        self.ledger: LossLedger[KerasMicroBatch] = LossLedger()
        self.outcome: KerasOutcome | None = None
        with wide_formats(self._wide):
            self.steps = steps_of(model, recipe, device)
        with self.scope():
            native = self.steps.bound.native(model.weights(recipe.seed) if weights is None else weights)
            self.held = self.steps.put(self.steps.start._replace(trained=native))
        self._places = {id(variable): place for place, variable in enumerate(self.steps.optimizer.variables)}
        found = slots(self.steps.optimizer, self.steps.bound.variables)
        self._slots = {slot: self._places[id(variable)] for slot, variable in found.items()}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The context of the run's calls: float64 where a head has it, the device, and Keras' distribution."""
        with wide_formats(self._wide), jax.default_device(self._device), self.steps.scope():
            yield

    # forward, backward and update

    def update(self, window: Window) -> Update:
        self._check_length(len(window))
        return super().update(window)

    def _load(self, batch: Batch) -> Loaded:
        self._passes += 1
        self._seen = load_batch(batch)
        return self._seen

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            self.held, self.outcome, sums = self.steps.train(self.held, self._load(batch))
            return self._enter(batch, sums)

    def _enter(self, batch: Batch, sums: Values) -> float:
        """Records a micro-batch; the window's items are those so far, since Keras knows no others."""
        return self._added(self._micro_batch(sum(total.item() for total in sums), batch.items))

    def _added(self, micro: KerasMicroBatch) -> float:
        return self.ledger.add(micro, self.ledger.items + micro.items)

    def _micro_batch(self, total: float, items: int) -> KerasMicroBatch:
        assert self.outcome is not None
        return micro_batch(self.outcome, total, items)

    def apply(self) -> Update:
        return self._ended(self.ledger)

    def _ended(self, ledger: LossLedger[KerasMicroBatch]) -> Update:
        """The result of the window in a ledger, which is cleared.

        Raises:
            Unsupported: PARTIAL_WINDOW.
        """
        window = ledger.micro_batches
        moved, before, rate = ending(window)
        if not moved and len(window) < self.recipe.accumulation:
            raise self.refusal(Capability.PARTIAL_WINDOW)
        last = window[-1]
        good = None if last.good_steps < 0 else last.good_steps
        loss, losses = ledger.loss(), ledger.losses()
        ledger.empty()
        return Update(loss, losses, before, last.scale_after, good, not moved, None, rate)

    def gradients(self, window: Window) -> dict[str, Array]:
        return self.canonical(self.window_gradients(window))

    def window_gradients(self, window: Window) -> Values:
        """The mean of the micro-batches' unscaled gradients, in the order of Keras' variables."""
        found = []
        with self.scope():
            for batch in window:
                gradients, others = self.steps.backward(self.held, self._load(batch))
                self.held = self.held._replace(others=others)
                found.append(gradients)
            count = len(found)
            return [reduce(jax.numpy.add, own) / np.asarray(count, own[0].dtype) for own in zip(*found, strict=True)]

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        if unscale_calls is not None or poison is not None or abandon:
            raise self.refusal(Capability.EXPLICIT_UNSCALE)
        self._check_length(len(window))
        with self.scope():
            for gradients in window:
                self.held, self.outcome = self.steps.feed(self.held, self._given(gradients))
                self._added(self._micro_batch(math.nan, 1))
        return self.apply()

    def _given(self, gradients: Gradients) -> dict[str, Array]:
        """Given gradients in Keras' shapes, in float32, or in float64 for a float64 variable."""
        variables = self.steps.bound.variables
        return {
            name: np.asarray(value).reshape(variables[name].shape).astype(_wide(variables[name].dtype))
            for name, value in gradients.items()
            if value is not None
        }

    def _check_length(self, length: int) -> None:
        if length > self.recipe.accumulation:
            raise ValueError(f"{length} micro-batches are more than one window of {self.recipe.accumulation}")

    # what a run has

    def canonical(self, values: Sequence[jax.Array]) -> dict[str, Array]:
        """Arrays in the order of Keras' trainable variables, by canonical name in canonical shape."""
        bound = self.steps.bound
        return {name: bound.canonical(name, values[place]) for name, place in bound.parameters.items()}

    def parameters(self) -> dict[str, Array]:
        return self.canonical(self.held.trained)

    def optimizer_state(self) -> dict[str, Array]:
        found = {
            slot: self.steps.bound.canonical(slot.partition("/")[2], self.held.optimizer[place])
            for slot, place in self._slots.items()
            if not slot.startswith(ACCUMULATOR)
        }
        with self.scope():
            found["steps"] = np.array(self.steps.look(self.held.optimizer).updates)
        if self.recipe.schedule is not None:
            found["schedule"] = self._micro_batches()
        return found

    def _micro_batches(self) -> Array:
        """The optimizer's own counter, which accumulation divides and a schedule reads undivided."""
        return self._read(inner_of(self.steps.optimizer).variables[0])

    def _read(self, variable: object) -> Array:
        """The value of one of the optimizer's variables in this run."""
        return np.array(self.held.optimizer[self._places[id(variable)]])

    def buffers(self) -> dict[str, Array]:
        return {name: np.array(self.held.others[place]) for name, place in self.steps.bound.buffers.items()}

    def scaler_state(self) -> dict[str, Array]:
        return scaler_state(self.steps.optimizer, self._read)

    def scaler_settings(self) -> dict[str, float]:
        return scaler_settings(self.steps.optimizer)

    def accumulator(self) -> dict[str, Array]:
        if self._position() == 0:
            return {}
        sums = {slot.removeprefix(ACCUMULATOR): p for slot, p in self._slots.items() if slot.startswith(ACCUMULATOR)}
        found = {name: self.steps.bound.canonical(name, self.held.optimizer[place]) for name, place in sums.items()}
        return {name: value / np.asarray(self.recipe.accumulation, value.dtype) for name, value in found.items()}

    def random_state(self) -> dict[str, Array]:
        return {path: np.array(self.held.others[place]) for path, place in self.steps.bound.seeds.items()}

    def state(self) -> dict[str, Array]:
        position = {"accumulator/position": np.array(self._position())} if self.recipe.accumulation > 1 else {}
        return super().state() | position

    def _position(self) -> int:
        return int(self._micro_batches()) % self.recipe.accumulation

    def predict(self, inputs: Array) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.outputs(self.held.trained, inputs).items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.outputs(self.averages(), inputs).items()}

    def averages(self) -> Values:
        """The trainable variables as `Optimizer.finalize_variable_values` makes them.

        Raises:
            ValueError: the recipe asks for no average.
        """
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        with self.scope():
            return self.steps.averaged(self.held)

    def outputs(self, trained: Values, inputs: Array) -> dict[str, jax.Array]:
        """Evaluation-mode forward with these trainable variables: output by head name."""
        with self.scope():
            return self.steps.predict(trained, self.held.others, inputs)

    # what a pass shows

    def segment_calls(self) -> tuple[int, ...]:
        """Counts of one forward and backward pass on the last batch, times the number of passes so far."""
        if self._seen is None:
            return (0,) * len(self.steps.bound.network.segments)
        with self.scope():
            each = self.steps.runs_in_a_pass(self.held, self._seen)
        return tuple(self._passes * runs for runs in each)

    def saved_bytes(self, batch: Batch) -> int:
        with self.scope():
            loaded = jax.device_put(load_batch(batch), self._device)
            trained = {f"{place:04}": value for place, value in enumerate(self.held.trained)}

            def losses(leaves: dict[str, jax.Array]) -> Values:
                return self.steps.losses(list(leaves.values()), self.held.others, loaded)[0]

            return saved_bytes(losses, trained, loaded)

    def trace(self, batch: Batch) -> LayerTrace:
        if self.recipe.recompute is not None:
            raise Unsupported(Capability.TRACE, INSIDE_RECOMPUTED, shows_recomputed)
        with self.scope():
            outputs, gradients, parameters, others = self.steps.traced(self.held, self._load(batch))
            scale = float(self.steps.look(self.held.optimizer).scale)
        self.held = self.held._replace(others=others)
        layers, paths = self.steps.bound.layers, traced_paths(self.model, batch)
        return LayerTrace(
            {path: np.array(outputs[layers[path]]) for path in paths},
            {path: unscaled_in_trace(np.array(gradients[layers[path]]), scale) for path in paths},
            self.canonical(parameters),
        )

    def peak_bytes(self) -> int:
        statistics = self._device.memory_stats()
        if statistics is None:
            raise self.refusal(Capability.PEAK_BYTES)
        return int(statistics["peak_bytes_in_use"])

    # the whole run

    def save(self, path: Path) -> None:
        checkpoint.save(self.steps, self.held, self.ledger.micro_batches, path)

    def restore(self, path: Path) -> None:
        with self.scope():
            self.held, window = checkpoint.restore(self.steps, self.held, path)
        self.ledger.replace(window, sum(micro.items for micro in window))


def _wide(dtype: str) -> type[np.floating]:
    return np.float64 if dtype == "float64" else np.float32
