"""One training run, written as the examples of Flax, Optax and JMP write it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
from frameworks.base import BaseTrainer
from frameworks.contract import Capability, Gradients, Unsupported, Update
from frameworks.jax import checkpoint, scaling
from frameworks.jax.arrays import Flat, to_array
from frameworks.jax.losses import load_batch
from frameworks.jax.network import leaves_of
from frameworks.jax.optimizers import (
    RunState,
    accumulated,
    applied,
    optimizer_state,
    rules_of,
    schedule_of,
    transformation,
)
from frameworks.jax.saved import saved_bytes
from frameworks.jax.steps import Micro, Moved, Outcome, Plan, steps_of, unscaled, update


class JaxTrainer(BaseTrainer):
    """A run on one device; windows of several micro-batches are `optax.MultiSteps`'s, which ends them itself.

    Attributes:
        states: train state of each optimizer.
        scale: JMP's loss scale.
        moved: running statistics and the random key's data.
        pending: scaled gradients that wait for `apply`; None where there are none.
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
            self.moved = Moved(leaves_of(self.layout, model.buffers(), self.steps.buffer_shapes, device), key)
            places = [self.layout.parameters[name] for name in model.parameter_shapes()]
            self.states = [
                self._state(leaves, tuple(places[start :: recipe.optimizers])) for start in range(recipe.optimizers)
            ]
            self.scale = scaling.loss_scale(recipe.scaling, device)
        self._asked: Any = {
            "guarded": not isinstance(self.scale, jmp.NoOpLossScale),
            "normed": recipe.clip is not None,
            "decay": recipe.average,
        }
        self._whole = self.steps.whole(**self._asked)
        self._settings = scaling.settings(self.scale)
        self._schedule = schedule_of(recipe)
        self.window: list[Micro] = []
        self.items = 0
        self.pending: Flat | None = None

    def _state(self, leaves: Flat, places: tuple[str, ...]) -> RunState:
        own = {place: leaves[place] for place in places}
        state = RunState.create(apply_fn=None, params=own, tx=transformation(rules_of(self.recipe, places, self._wide)))
        average = None if self.recipe.average is None else own
        return jax.device_put(state.replace(step=jnp.zeros((), jnp.int32), average=average), self.device)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Float64 where a head has it, and no compilation where the mode says so."""
        with jax.enable_x64(self._wide), jax.default_device(self.device), jax.disable_jit(self._eager):
            yield

    @property
    def leaves(self) -> Flat:
        """Every parameter by joined path, as the optimizers hold them."""
        return {place: value for state in self.states for place, value in state.params.items()}

    # forward and backward

    def _backward(self, batch: Batch, items: int) -> tuple[Flat, float]:
        loaded = load_batch(self.model, batch)
        counted = np.float32(items)
        gradients, sums, self.moved = self.steps.backward(self.leaves, self.moved, self.scale, loaded, counted)
        return gradients, float(sum(float(total) for total in sums))

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            before = self._scale()
            gradients, total = self._backward(batch, items)
            self.window.append(self._taken_in(gradients, Micro(total, batch.items, before)))
        self.items = items
        return self.window[-1].loss

    def _taken_in(self, gradients: Flat, micro: Micro) -> Micro:
        """Hands the gradients to `optax.MultiSteps`, or keeps them for `apply`."""
        if self.recipe.accumulation == 1:
            self.pending = gradients if self.pending is None else optax.tree.add(self.pending, gradients)
            return micro
        rate = self._rate()
        moved, _ = self._update(unscaled(self.scale, gradients, self.leaves))
        return Micro(micro.total, micro.items, micro.scale_before, moved, rate)

    def gradients(self, window: Window) -> dict[str, Array]:
        items = sum(batch.items for batch in window)
        with self.scope():
            found = [self._backward(batch, items)[0] for batch in window]
            total = found[0]
            for gradients in found[1:]:
                total = optax.tree.add(total, gradients)
            return self.layout.arrays(unscaled(self.scale, total, self.leaves))

    # the update

    def update(self, window: Window) -> Update:
        """A window of one micro-batch is one compiled program, unless something waits for `apply`."""
        if len(window) > 1 or self.recipe.accumulation > 1 or self.window:
            return super().update(window)
        (batch,) = window
        items = batch.items
        with self.scope() if self._wide or self._eager else nullcontext():
            before, rate = self._scale(), self._rate()
            loaded = load_batch(self.model, batch)
            self.states, self.scale, self.moved, sums, outcome = self._whole(
                self.states, self.moved, self.scale, loaded, np.float32(items)
            )
            moved, norm = _read(outcome)
            self.window = [Micro(sum(total.item() for total in sums), items, before)]
        self.items = items
        return self._report(before, rate, norm, skipped=not moved)

    def _update(self, gradients: Flat) -> tuple[bool, float | None]:
        """Hands unscaled gradients to the optimizers: whether an update was applied, and the gradients' norm."""
        self.states, self.scale, outcome = update(self.states, self.scale, gradients, **self._asked)
        return _read(outcome)

    def apply(self) -> Update:
        return self._ended() if self.recipe.accumulation > 1 else self._finish(1, None)

    def _ended(self) -> Update:
        """Reports the window that `optax.MultiSteps` has ended, or one whose micro-batches it dropped."""
        window, k = self.window, self.recipe.accumulation
        moved = [micro for micro in window if micro.applied]
        if not moved and len(window) < k:
            reason = f"optax.MultiSteps has no call that ends a window after {len(window)} of {k} micro-batches"
            raise Unsupported(Capability.PARTIAL_WINDOW, reason)
        return self._report(window[0].scale_before, (moved or window)[-1].rate, None, skipped=not moved)

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        with self.scope():
            for mapping in window:
                before = self._scale()
                given = self._given(mapping)
                gradients = self.steps.surrogate(self.leaves, self.scale, given, np.float32(self.recipe.accumulation))
                self.window.append(self._taken_in(gradients, Micro(math.nan, 1, before)))
        if self.recipe.accumulation > 1:
            return self._ended()
        return self._abandoned() if abandon else self._finish(1 if unscale_calls is None else unscale_calls, poison)

    def _given(self, gradients: Gradients) -> Flat:
        held = self.leaves
        places = {name: self.layout.parameters[name] for name, value in gradients.items() if value is not None}
        return {
            place: jax.device_put(self.layout.leaf(name, np.asarray(gradients[name]), held[place].dtype), self.device)
            for name, place in places.items()
        }

    def _finish(self, unscale_calls: int, poison: Gradients | None) -> Update:
        with self.scope():
            before, rate, gradients = self._scale(), self._rate(), self._taken_out()
            for _ in range(unscale_calls):
                gradients = unscaled(self.scale, gradients, self.leaves)
            for place, value in self._given(poison or {}).items():
                gradients = gradients | {place: gradients[place] + value}
            moved, norm = self._update(gradients)
        return self._report(before, rate, norm, skipped=not moved)

    def _abandoned(self) -> Update:
        """Ends an update whose gradients are unscaled without a step: the loss scale still learns of an overflow."""
        with self.scope():
            before, rate = self._scale(), self._rate()
            gradients = unscaled(self.scale, self._taken_out(), self.leaves)
            self.scale = self.scale.adjust(jmp.all_finite(gradients))
        return self._report(before, rate, None, skipped=True)

    def _taken_out(self) -> Flat:
        gradients, self.pending = self.pending, None
        if gradients is None:
            raise ValueError("apply without any micro-batch before it")
        return gradients

    def _report(self, before: float, rate: float, norm: float | None, *, skipped: bool) -> Update:
        window, self.window = self.window, []
        loss = sum(micro.total for micro in window) / self.items if self.items else math.nan
        state = scaling.held(self.scale)
        good = int(state["good_steps"]) if "good_steps" in state else None
        return Update(loss, tuple(m.loss for m in window), before, self._scale(), good, skipped, norm, rate)

    def _scale(self) -> float:
        return float(self.scale.loss_scale)

    def _rate(self) -> float:
        return float(self._schedule(applied(self.states[0])))

    # what can be seen

    def parameters(self) -> dict[str, Array]:
        with self.scope():
            return self.layout.arrays(self.steps.cast(self.leaves))

    def master_parameters(self) -> dict[str, Array]:
        return self.layout.arrays(self.leaves)

    def optimizer_state(self) -> dict[str, Array]:
        return optimizer_state(self.states, self.layout)

    def buffers(self) -> dict[str, Array]:
        return self.layout.arrays(self.moved.buffers)

    def scaler_state(self) -> dict[str, Array]:
        return scaling.held(self.scale)

    def scaler_settings(self) -> dict[str, float]:
        return dict(self._settings)

    def accumulator(self) -> dict[str, Array]:
        held: dict[str, Any] = dict(self.pending or {})
        for state in self.states:
            held |= accumulated(state)
        return self.layout.arrays(held)

    def random_state(self) -> dict[str, Array]:
        return {"key": to_array(self.moved.key)}

    def predict(self, inputs: Array) -> dict[str, Array]:
        return self._predict(self.leaves, inputs)

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self.recipe.average is None:
            raise ValueError("this recipe asks for no average")
        return self._predict({place: v for state in self.states for place, v in state.average.items()}, inputs)

    def _predict(self, leaves: Flat, inputs: Array) -> dict[str, Array]:
        with self.scope():
            outputs = self.steps.predict(leaves, self.moved.buffers, jax.device_put(inputs, self.device))
            return {name: to_array(value) for name, value in outputs.items()}

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

    def peak_bytes(self) -> int:
        statistics = self.device.memory_stats()
        if statistics is None:
            raise Unsupported(Capability.PEAK_BYTES, "JAX keeps no memory statistics of this device")
        return int(statistics["peak_bytes_in_use"])


def _read(outcome: Outcome) -> tuple[bool, float | None]:
    """Whether an update was applied, and the norm of its gradients where one was asked for."""
    return outcome.applied is None or outcome.applied.item(), None if outcome.norm is None else outcome.norm.item()
