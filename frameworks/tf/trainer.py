"""One training run with Keras on TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Float8, Recipe
from frameworks.base import NO_AVERAGE, BaseTrainer, LossLedger, ending, traced_paths, unscaled_in_trace
from frameworks.contract import Capability, Gradients, LayerTrace, Operand, Remembered, Unsupported, Update
from frameworks.keras_parts.optimizers import shown_by, slots
from frameworks.keras_parts.scaler import inner_of
from frameworks.tf import float8_training
from frameworks.tf.arrays import as_array
from frameworks.tf.checkpoint import load_checkpoint, save_checkpoint
from frameworks.tf.declarations import INSIDE_RECOMPUTED
from frameworks.tf.network import BuiltNetwork, build
from frameworks.tf.optimizers import make_optimizer, predict_on_average
from frameworks.tf.probes import shows_recomputed
from frameworks.tf.saved_bytes import captured_bytes
from frameworks.tf.scaler import scaler_settings, scaler_state
from frameworks.tf.settings import dtype_policy, graph_rewrite
from frameworks.tf.steps import KerasMicroBatch, TracedSteps

ACCUMULATOR = "gradient_accumulator/"


class TensorFlowTrainer(BaseTrainer):
    """One run. Keras ends a window itself with the k-th micro-batch, so `apply` only reports.

    Args:
        policy: name of the dtype policy of the layers.
        rewrite: grappler option that is on while this run's functions run, `NO_REWRITE` for none, None for what is set.
        place: TensorFlow's device name, such as "/GPU:0".
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        weights: Mapping[str, Array] | None,
        *,
        mode: str,
        policy: str,
        rewrite: str | None,
        place: str,
    ) -> None:
        self._model = model
        self._recipe = recipe
        self._mode = mode
        self._rewrite = rewrite
        self._place = place
        self._ledger: LossLedger[KerasMicroBatch] = LossLedger()
        with self._placed():
            with dtype_policy(policy):
                asked = recipe.quantization
                history = asked.history if isinstance(asked, Float8) else None
                self._bound: BuiltNetwork = build(model, recipe.seed, recipe.recompute, history)
            self._bound.load(model.weights(recipe.seed) if weights is None else weights)
            variables = list(self._bound.variables.values())
            self._optimizer = make_optimizer(recipe, variables)
            self._optimizer.build([*variables, *self._bound.memory.values()])
            self._steps = self._made_steps()
            every = slots(self._optimizer, self._bound.variables | self._bound.memory)
            self._slots = {slot: v for slot, v in every.items() if slot.partition("/")[2] in self._bound.variables}
            gathered = {slot.removeprefix(ACCUMULATOR): v for slot, v in every.items() if slot not in self._slots}
            self._gathered: dict[str, keras.Variable] = gathered
        if not place.startswith("/CPU"):
            tf.config.experimental.reset_memory_stats(place.strip("/"))

    def _made_steps(self) -> TracedSteps:
        return TracedSteps(self._model, self._bound, self._optimizer, self._mode, self._recipe.separate_losses)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        with tf.device(self._place), graph_rewrite(self._rewrite):
            yield

    def update(self, window: Window) -> Update:
        self._check_length(len(window))
        return super().update(window)

    def accumulate(self, batch: Batch, items: int) -> float:
        with self._placed():
            return self._enter(self._steps.train(batch))

    def _enter(self, micro: KerasMicroBatch) -> float:
        """Records a micro-batch; the window's items are those so far, since Keras knows no others."""
        return self._ledger.add(micro, self._ledger.items + micro.items)

    def apply(self) -> Update:
        return self._ended(self._ledger)

    def _ended(self, ledger: LossLedger[KerasMicroBatch]) -> Update:
        """The result of the window in a ledger, which is cleared.

        Raises:
            Unsupported: PARTIAL_WINDOW.
        """
        window = ledger.micro_batches
        moved, before, rate = ending(window)
        if not moved and len(window) < self._recipe.accumulation:
            raise self.refusal(Capability.PARTIAL_WINDOW)
        last = window[-1]
        good = None if last.good_steps < 0 else last.good_steps
        loss, losses = ledger.loss(), ledger.losses()
        ledger.empty()
        return Update(loss, losses, before, last.scale_after, good, not moved, None, rate)

    def gradients(self, window: Window) -> dict[str, Array]:
        with self._placed():
            return self._mean([self._steps.gradients(batch) for batch in window])

    def _mean(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> dict[str, Array]:
        """The mean of the micro-batches' gradients; missing ones count as zeros."""
        totals: dict[str, tf.Tensor] = {}
        for own in gradients:
            for name, gradient in own.items():
                totals[name] = totals[name] + gradient if name in totals else gradient
        found = {name: self._bound.canonical(name, total.numpy()) for name, total in totals.items()}
        return {name: value / np.asarray(len(gradients), value.dtype) for name, value in found.items()}

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
        with self._placed():
            for gradients in window:
                self._enter(self._steps.feed(self._native(gradients)))
        return self.apply()

    def _native(self, gradients: Gradients) -> dict[str, Array]:
        """The gradients that are there in Keras' shapes, in the order of variables."""
        given = {name: gradients.get(name) for name in self._bound.variables}
        return {name: self._bound.native(name, value) for name, value in given.items() if value is not None}

    def _check_length(self, length: int) -> None:
        if length > self._recipe.accumulation:
            raise ValueError(f"{length} micro-batches are more than one window of {self._recipe.accumulation}")

    def parameters(self) -> dict[str, Array]:
        return {n: self._bound.canonical(n, as_array(v)) for n, v in self._bound.variables.items()}

    def optimizer_state(self) -> dict[str, Array]:
        found = {
            slot: self._bound.canonical(slot.partition("/")[2], as_array(variable))
            for slot, variable in self._slots.items()
            if not slot.startswith(ACCUMULATOR)
        }
        found["steps"] = np.array(shown_by(self._optimizer).iterations)
        if self._recipe.schedule is not None:
            found["schedule"] = self._micro_batches()
        return found

    def buffers(self) -> dict[str, Array]:
        own = {name: as_array(variable) for name, variable in self._bound.buffers.items()}
        return own | float8_training.shown(self._bound.memory, self._gathered)

    def remembered(self) -> dict[str, dict[Operand, Remembered]]:
        if not self._bound.memory:
            raise self.refusal(Capability.FLOAT8_TRAINING)
        return float8_training.remembered(self._bound.memory)

    def scaler_state(self) -> dict[str, Array]:
        return scaler_state(self._optimizer)

    def scaler_settings(self) -> dict[str, float]:
        return scaler_settings(self._optimizer)

    def accumulator(self) -> dict[str, Array]:
        if self._position() == 0:
            return {}
        sums = {s.removeprefix(ACCUMULATOR): as_array(v) for s, v in self._slots.items() if s.startswith(ACCUMULATOR)}
        steps = self._recipe.accumulation
        return {name: self._bound.canonical(name, v / np.asarray(steps, v.dtype)) for name, v in sums.items()}

    def random_state(self) -> dict[str, Array]:
        return {path: as_array(seed.state) for path, seed in self._bound.seeds.items()}

    def state(self) -> dict[str, Array]:
        position = {"accumulator/position": np.array(self._position())} if self._recipe.accumulation > 1 else {}
        return super().state() | position

    def _micro_batches(self) -> Array:
        """The optimizer's own counter, which accumulation divides and a schedule reads undivided."""
        return as_array(inner_of(self._optimizer).variables[0])

    def _position(self) -> int:
        return int(self._micro_batches()) % self._recipe.accumulation

    def predict(self, inputs: Array) -> dict[str, Array]:
        with self._placed():
            outputs = self._steps.predict(inputs)
        return {name: np.array(output.numpy()) for name, output in outputs.items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self._recipe.average is None:
            raise ValueError(NO_AVERAGE)
        with self._placed():
            return predict_on_average(self._bound.network, self._optimizer, inputs, self._mode)

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(int(segment.calls.numpy()) for segment in self._bound.network.segments)

    def save(self, path: Path) -> None:
        save_checkpoint(path, self._bound, self._optimizer, [self._ledger.micro_batches])

    def restore(self, path: Path) -> None:
        with self._placed():
            (window,) = load_checkpoint(path, self._bound, self._optimizer, 1)
        self._ledger.replace(window, sum(micro.items for micro in window))

    def saved_bytes(self, batch: Batch) -> int:
        if self._mode != "graph":
            raise self.refusal(Capability.SAVED_BYTES)
        return captured_bytes(self._steps.forward_loss, batch)

    def trace(self, batch: Batch) -> LayerTrace:
        if self._recipe.recompute is not None:
            raise Unsupported(Capability.TRACE, INSIDE_RECOMPUTED, partial(shows_recomputed, self._mode))
        with self._placed():
            traced = self._steps.trace(batch)
        layers, scale = self._bound.layers, float(traced.scale)
        paths = traced_paths(self._model, batch)
        return LayerTrace(
            {path: np.array(traced.outputs[layers[path]].numpy()) for path in paths},
            {path: unscaled_in_trace(np.array(traced.gradients[layers[path]].numpy()), scale) for path in paths},
            {name: self._bound.canonical(name, value.numpy()) for name, value in traced.parameters.items()},
        )

    def peak_bytes(self) -> int:
        if self._place.startswith("/CPU"):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(tf.config.experimental.get_memory_info(self._place.strip("/"))["peak"])
