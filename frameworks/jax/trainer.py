"""One training run, written as the examples of Flax, Optax and JMP write it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, BaseTrainer, LossLedger, ending, over_window, traced_paths, unscaled_in_trace
from frameworks.contract import Capability, Gradients, LayerTrace, Unsupported, Update
from frameworks.jax import checkpoint, optimizers, scaler
from frameworks.jax.arrays import Flat, to_array, wide_formats
from frameworks.jax.declarations import TAKES_EACH_IN
from frameworks.jax.losses import Loaded, load_batch
from frameworks.jax.network import leaves_of, segments
from frameworks.jax.optimizer_probes import window_waits_for_the_caller
from frameworks.jax.optimizers import RunState, accumulated, applied, rules_of, schedule_of, transformation
from frameworks.jax.recompute import runs_in_a_pass
from frameworks.jax.saved_bytes import saved_bytes
from frameworks.jax.scaler import Judged
from frameworks.jax.steps import Carried, JaxMicroBatch, Plan, UpdateResult, steps_of, unscaled, update
from frameworks.jax.trace import traced


class JaxTrainer(BaseTrainer):
    """A run on one device; windows of several micro-batches are `optax.MultiSteps`'s, which ends them itself.

    Attributes:
        train_state: parameters and the optimizer's state.
        scale: the loss scale, JMP's or Flax's.
        moved: running statistics and the random key's data.
        length: how many micro-batches the open window takes.
        pending: gradients that wait for `apply`, with what Flax's scale said of them; None where there are none.
    """

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: jax.Device, mode: str
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.device = device
        self._wide = any(head.format == "float64" for head in model.heads.heads)
        self._eager = mode == "nojit"
        with self.scope():
            self.steps = steps_of(Plan(model, recipe.precision, recipe.recompute, recipe.separate_losses))
            self.layout = self.steps.layout
            given = model.weights(recipe.seed) if weights is None else weights
            leaves = leaves_of(self.layout, given, self.steps.shapes, device)
            key = jax.device_put(jax.random.key_data(jax.random.key(recipe.seed)), device)
            self.moved = Carried(leaves_of(self.layout, model.buffers(), self.steps.buffer_shapes, device), key)
            places = tuple(self.layout.parameters[name] for name in model.parameter_shapes())
            self._rules = rules_of(recipe, places, self._wide)
            state = RunState.create(apply_fn=None, params=leaves, tx=transformation(self._rules))
            average = None if recipe.average is None else leaves
            state = state.replace(step=jnp.zeros((), jnp.int32), average=average)
            self.train_state: RunState = jax.device_put(state, device)
            self.scale = scaler.loss_scale(recipe.scaling, device)
        scaler.refuse_several_gradients(self.scale, recipe)
        guarded = scaler.is_dynamic(self.scale)
        self._asked: Any = {"guarded": guarded, "normed": recipe.clip is not None, "decay": recipe.average}
        self._whole = self.steps.whole(**self._asked)
        self._settings = scaler.settings(self.scale)
        self._schedule = schedule_of(recipe)
        self.length = recipe.accumulation
        self._passes = 0
        self._seen: Loaded | None = None
        self.ledger: LossLedger[JaxMicroBatch] = LossLedger()
        self.pending: tuple[Flat, Judged | None] | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Float64 where a head has it, and no compilation where the mode says so."""
        with wide_formats(self._wide), jax.default_device(self.device), jax.disable_jit(self._eager):
            yield

    @property
    def leaves(self) -> Flat:
        """Every parameter by joined path, as the optimizer holds them."""
        found: Flat = self.train_state.params
        return found

    # forward and backward

    def _backward(self, batch: Batch, items: int) -> tuple[Flat, Judged | None, float]:
        loaded = self._seen = load_batch(self.model, batch)
        self._passes += 1
        gradients, judged, sums, self.moved = self.steps.backward(
            self.leaves, self.moved, self.scale, loaded, np.float32(items)
        )
        return gradients, judged, float(sum(float(total) for total in sums))

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            before = self._scale()
            gradients, judged, total = self._backward(batch, items)
            micro = self._taken_in(gradients, judged, JaxMicroBatch(total, batch.items, before))
        return self.ledger.add(micro, items)

    def _taken_in(self, gradients: Flat, judged: Judged | None, micro: JaxMicroBatch) -> JaxMicroBatch:
        """Hands the gradients to `optax.MultiSteps`, or keeps them for `apply`."""
        if self.recipe.accumulation == 1:
            if self.pending is not None:
                raise ValueError("this recipe's windows hold one micro-batch, and one waits for apply")
            self.pending = gradients, judged
            return micro
        rate = self._rate()
        outcome = self._update(unscaled(self.scale, gradients, self.leaves), None, last=False)
        finite = outcome.finite is None or outcome.finite.item()
        return replace(micro, finite=finite, applied=outcome.moved(), rate=rate)

    def gradients(self, window: Window) -> dict[str, Array]:
        with self.scope():
            parts = [unscaled(self.scale, scaled, self.leaves) for scaled, _, _ in over_window(window, self._backward)]
            return self.layout.arrays(reduce(optax.tree.add, parts))

    # the update

    def update(self, window: Window) -> Update:
        """A window of one micro-batch is one compiled program, unless something waits for `apply`."""
        if len(window) > 1 or self.recipe.accumulation > 1 or self.ledger.micro_batches:
            self._begin(len(window))
            try:
                return super().update(window)
            finally:
                if not self.ledger.micro_batches:
                    self.resize(self.recipe.accumulation)
        (batch,) = window
        with self.scope() if self._wide or self._eager else nullcontext():
            before, rate = self._scale(), self._rate()
            loaded = self._seen = load_batch(self.model, batch)
            self._passes += 1
            self.train_state, self.scale, self.moved, sums, outcome = self._whole(
                self.train_state, self.moved, self.scale, loaded, np.float32(batch.items)
            )
            moved, norm = outcome.moved(), outcome.read_norm()
            total = sum(total.item() for total in sums)
        self.ledger.add(JaxMicroBatch(total, batch.items, before), batch.items)
        return self._report(before, rate, norm, skipped=not moved)

    def _begin(self, length: int) -> None:
        """Lets a window be shorter than the others, as `every_k_schedule` may: its length is known before it begins."""
        if length < self.recipe.accumulation and not accumulated(self.train_state):
            self.resize(length)

    def resize(self, length: int) -> None:
        """Makes windows of another length, on the same state of `optax.MultiSteps`."""
        if length != self.length:
            self.length = length
            with self.scope():
                self.train_state = self.train_state.replace(tx=transformation(replace(self._rules, length=length)))

    def _update(self, gradients: Flat, judged: Judged | None, *, last: bool) -> UpdateResult:
        """Hands unscaled gradients to the optimizer; with the `last` micro-batch of its window the scale moves."""
        self.train_state, self.scale, outcome = update(
            self.train_state, self.scale, gradients, judged, **self._asked, last=last
        )
        return outcome

    def apply(self) -> Update:
        return self._ended() if self.recipe.accumulation > 1 else self._finish(1, None)

    def _ended(self) -> Update:
        """Reports what `optax.MultiSteps` made of the window, and moves the loss scale once.

        A window that was ended before its length is carried over: nothing but a k-th micro-batch ends it. One whose
        micro-batches were not all finite lacks as many, for each was dropped as if it had never been.
        """
        window = self.ledger.micro_batches
        moved, before, rate = ending(window)
        if not moved and len(window) < self.length:
            return self._window_update(before, rate, None, skipped=True)
        if self._asked["guarded"]:
            with self.scope():
                self.scale = scaler.adjusted(self.scale, np.asarray(all(micro.finite for micro in window)))
        self.resize(self.recipe.accumulation)
        return self._report(before, rate, None, skipped=not moved)

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        if (unscale_calls or 0) > 1 and not scaler.unscales_itself(self.scale):
            raise self.refusal(Capability.SECOND_UNSCALE)
        by_hand = poison is not None or abandon
        calls = scaler.unscale_calls(self.scale, unscale_calls, by_hand=by_hand)
        if by_hand and self.recipe.accumulation > 1:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, TAKES_EACH_IN, window_waits_for_the_caller)
        self._begin(len(window))
        with self.scope():
            for mapping in window:
                before, given, parts = self._scale(), self._given(mapping), np.float32(self.length)
                gradients, judged = self.steps.surrogate(self.leaves, self.scale, given, parts)
                micro = self._taken_in(gradients, judged, JaxMicroBatch(math.nan, 1, before))
                self.ledger.add(micro, len(window))
        if self.recipe.accumulation > 1:
            return self._ended()
        return self._abandoned() if abandon else self._finish(calls, poison)

    def _given(self, gradients: Gradients) -> Flat:
        held = self.leaves
        places = {name: self.layout.parameters[name] for name, value in gradients.items() if value is not None}
        return {
            place: jax.device_put(self.layout.leaf(name, np.asarray(gradients[name]), held[place].dtype), self.device)
            for name, place in places.items()
        }

    def _finish(self, unscale_calls: int, poison: Gradients | None) -> Update:
        with self.scope():
            before, rate, (gradients, judged) = self._scale(), self._rate(), self._taken_out()
            for _ in range(unscale_calls):
                gradients = unscaled(self.scale, gradients, self.leaves)
            for place, value in self._given(poison or {}).items():
                gradients = gradients | {place: gradients[place] + value}
            outcome = self._update(gradients, judged, last=True)
        return self._report(before, rate, outcome.read_norm(), skipped=not outcome.moved())

    def _abandoned(self) -> Update:
        """Ends an update whose gradients are unscaled without a step: the loss scale still learns of an overflow."""
        with self.scope():
            before, rate = self._scale(), self._rate()
            gradients = unscaled(self.scale, self._taken_out()[0], self.leaves)
            self.scale = scaler.adjusted(self.scale, jmp.all_finite(gradients))
        return self._report(before, rate, None, skipped=True)

    def _taken_out(self) -> tuple[Flat, Judged | None]:
        waiting, self.pending = self.pending, None
        if waiting is None:
            raise ValueError("apply without any micro-batch before it")
        return waiting

    def _report(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        """The update of a window that has ended; the next one begins empty."""
        update = self._window_update(before, rate, norm, skipped=skipped)
        self.ledger.empty()
        return update

    def _window_update(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        state = scaler.held(self.scale)
        good = int(state["good_steps"]) if "good_steps" in state else None
        losses = self.ledger.losses()
        return Update(self.ledger.loss(), losses, before, self._scale(), good, skipped, norm, rate)

    def _scale(self) -> float:
        return scaler.current(self.scale)

    def _rate(self) -> float:
        return float(self._schedule(applied(self.train_state)))

    # what can be seen

    def parameters(self) -> dict[str, Array]:
        with self.scope():
            return self.layout.arrays(self.steps.cast(self.leaves))

    def master_parameters(self) -> dict[str, Array]:
        return self.layout.arrays(self.leaves)

    def optimizer_state(self) -> dict[str, Array]:
        return optimizers.optimizer_state(self.train_state, self.layout)

    def buffers(self) -> dict[str, Array]:
        return self.layout.arrays(self.moved.buffers)

    def scaler_state(self) -> dict[str, Array]:
        return scaler.held(self.scale)

    def scaler_settings(self) -> dict[str, float]:
        return dict(self._settings)

    def accumulator(self) -> dict[str, Array]:
        return self.layout.arrays((self.pending[0] if self.pending else {}) | accumulated(self.train_state))

    def random_state(self) -> dict[str, Array]:
        return {"key": to_array(self.moved.key)}

    def predict(self, inputs: Array) -> dict[str, Array]:
        return self._predict(self.leaves, inputs)

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        return self._predict(self.train_state.average, inputs)

    def _predict(self, leaves: Flat, inputs: Array) -> dict[str, Array]:
        with self.scope():
            outputs = self.steps.predict(leaves, self.moved.buffers, jax.device_put(inputs, self.device))
            return {name: to_array(value) for name, value in outputs.items()}

    def segment_calls(self) -> tuple[int, ...]:
        """Those of one forward and backward pass, counted now on the last batch, times the passes so far."""
        if self._seen is None:
            return (0,) * len(segments(self.model, self.recipe.recompute))
        with self.scope():
            each = runs_in_a_pass(self.steps.plan, self.leaves, self.moved, self.scale, self._seen)
        return tuple(self._passes * runs for runs in each)

    # the whole run

    def save(self, path: Path) -> None:
        checkpoint.save(self, path)

    def restore(self, path: Path) -> None:
        with self.scope():
            checkpoint.restore(self, path)

    def saved_bytes(self, batch: Batch) -> int:
        with self.scope():
            loaded = jax.device_put(load_batch(self.model, batch), self.device)
            return saved_bytes(lambda leaves: self.steps.losses(leaves, self.moved, loaded)[0], self.leaves, loaded)

    def trace(self, batch: Batch) -> LayerTrace:
        loaded = self._seen = load_batch(self.model, batch)
        self._passes += 1
        with self.scope():
            outputs, gradients, self.moved = traced(
                self.steps, self.leaves, self.moved, self.scale, loaded, np.float32(batch.items)
            )
            of_parameters = self.layout.arrays(unscaled(self.scale, gradients[0], self.leaves))
        scale = 1.0 if scaler.unscales_itself(self.scale) else self._scale()
        places = {path: self.layout.outputs[path] for path in traced_paths(self.model, batch)}
        return LayerTrace(
            {path: to_array(outputs[place]) for path, place in places.items()},
            {path: unscaled_in_trace(to_array(gradients[1][place]), scale) for path, place in places.items()},
            of_parameters,
        )

    def peak_bytes(self) -> int:
        statistics = self.device.memory_stats()
        if statistics is None:
            raise self.refusal(Capability.PEAK_BYTES)
        return int(statistics["peak_bytes_in_use"])
