"""The reference's training run: every technique in the plainest way, one small method a decision.

A broken twin is a subclass that overrides one of these:

    forward     draw_mask, running_statistics, update_running_statistics
    recompute   recompute_segment (all of the next three), replay_random, replay_buffers, replay_precision
    loss        normalise (how a micro-batch's loss is weighted by items), scale_loss, reported_loss
    window      accumulate_gradient, accumulator_format, take_micro_batch, window_ended, empty_accumulator
    scaler      unscale, found_nonfinite, judge (when and for whom it is asked), next_scale
    update      gradient_norm, clip, apply_update, advance_schedule, learning_rate, sync_masters
    checkpoint  save_state, load_state

Casting and the choice of an operation's format are `Operations.cast` and `Operations.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array, wider
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer
from frameworks.contract import Conventions, Gradients, Update
from frameworks.reference import checkpoint, scope, snapshot
from frameworks.reference.forward import Forward, master_format
from frameworks.reference.ops import Operations
from frameworks.reference.optimizers import Arithmetic, slot_names, stepper
from frameworks.reference.scaler import LossScale, loss_scale
from frameworks.reference.tape import Pullback, taped
from frameworks.reference.tensor import Tensor, plain, rounded

Arrays = dict[str, Array]


@dataclass
class OpenWindow:
    """What a window has gathered: accumulated gradients, loss sums with their items, and what has been decided."""

    gradients: Arrays = field(default_factory=dict)
    losses: list[tuple[float, int]] = field(default_factory=list)
    items: int = 0
    micro_batches: int = 0
    dropped: int = 0
    scale: float = 1.0
    unscaled: bool = False
    scaled_overflow: frozenset[int] = frozenset()
    latched: frozenset[int] | None = None


class ReferenceTrainer(Forward, BaseTrainer):
    """One run. All arrays are float64 carriers; `formats` and `master_formats` say what they are worth."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops)
        self.master_formats = {n: master_format(recipe.precision, f) for n, f in self.formats.items()}
        given = model.weights(recipe.seed) if weights is None else weights
        if {n: a.shape for n, a in given.items()} != model.parameter_shapes():
            raise ValueError(f"these weights are not those of {model.name}")
        self.masters = {
            name: self.rounding.round(given[name].astype(np.float64), format_name)
            for name, format_name in self.master_formats.items()
        }
        self._places = {name: place for place, name in enumerate(self.masters)}
        self.values: Arrays = {}
        self.sync_masters()
        slots = slot_names(recipe.optimizer)
        self.slots = {slot: {n: np.zeros_like(v) for n, v in self.masters.items()} for slot in slots}
        self.counts = dict.fromkeys(self.masters, 0)
        self.steps = 0
        self.schedule = 0
        self.scaler: LossScale | None = loss_scale(recipe.scaling, conventions.scaler)
        self.settings = self.scaler
        self.window = OpenWindow()

    # decisions: loss

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:  # noqa: ARG002
        """The share of a micro-batch's loss sum in the window's mean: divided by the window's items."""
        return Tensor(rounded(loss.value / window_items, self.rounding, loss.format), loss.format)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss that backward starts from, in float32 or wider."""
        if self.scaler is None:
            return loss
        wide = self.ops.cast(loss, wider(loss.format, "float32"))
        return Tensor(rounded(wide.value * self.scaler.scale, self.rounding, wide.format), wide.format)

    def reported_loss(self, total: float, items: int) -> float:
        """Mean loss as the caller gets it."""
        return total / items if items else float("nan")

    # decisions: window

    def take_micro_batch(self, gradients: Arrays) -> None:
        """Adds a micro-batch's scaled gradients, or decides on them alone where the conventions say so."""
        rule = self.conventions.scaler
        self.window.micro_batches += 1
        alone = rule.counts == "micro-batches" or self.conventions.nonfinite_micro_batch == "drop-micro-batch"
        if self.scaler is not None and alone:
            gradients = {name: self.unscale(name, g) for name, g in gradients.items()}
            self.window.unscaled = True
            finite = not self.found_nonfinite(gradients)
            if rule.counts == "micro-batches":
                self.scaler = self.next_scale(self.scaler, finite)
            if not finite and self.conventions.nonfinite_micro_batch == "drop-micro-batch":
                self.window.dropped += 1
                return
        for name, gradient in gradients.items():
            self.accumulate_gradient(name, gradient)

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        """Adds to the accumulator, which is float32 or wider."""
        held = self.window.gradients.get(name)
        total = gradient if held is None else held + gradient
        self.window.gradients[name] = self.rounding.round(total, self.accumulator_format(name))

    def accumulator_format(self, name: str) -> str:
        """Format of a parameter's accumulator."""
        return wider(self.formats[name], "float32")

    def window_ended(self) -> bool:
        """Whether `apply` may apply: an incomplete window is applied only where the conventions flush it."""
        return self.conventions.remainder == "flush" or self.window.micro_batches >= self.recipe.accumulation

    def empty_accumulator(self) -> None:
        """Starts the next window."""
        self.window = OpenWindow()

    # decisions: scaler

    def unscale(self, name: str, gradient: Array) -> Array:
        """A gradient divided by the scale, in the accumulator's format."""
        assert self.scaler is not None
        return self.rounding.round(gradient / self.scaler.scale, self.accumulator_format(name))

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        """Whether any element of any gradient is infinite or not a number."""
        return not all(bool(np.isfinite(g).all()) for g in gradients.values())

    def judge(self) -> frozenset[int]:
        """Numbers of the optimizers whose gradients are not finite now."""
        owners = {self.optimizer_of(name) for name in self.masters}
        shares = {o: {n: g for n, g in self.window.gradients.items() if self.optimizer_of(n) == o} for o in owners}
        found = frozenset(o for o, share in shares.items() if self.found_nonfinite(share))
        return frozenset(owners) if found and self.conventions.partial_overflow == "skip-all" else found

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        """The scale after an update."""
        return scaler.adjust(finite)

    # decisions: update

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        """Global 2-norm."""
        squares = sum(float(np.vdot(g, g)) for g in gradients.values())
        return float(self.rounding.round(np.sqrt(np.asarray(squares)), "float32"))

    def clip(self, gradients: Arrays) -> Arrays:
        """Gradients scaled down to the largest norm that the recipe allows."""
        if self.recipe.clip is None:
            return gradients
        coefficient = self.recipe.clip / (self.gradient_norm(gradients) + self.conventions.clip_epsilon)
        if coefficient >= 1.0:
            return gradients
        factor = self.rounding.round(np.asarray(coefficient), "float32")
        return {name: self.rounding.round(g * factor, self.accumulator_format(name)) for name, g in gradients.items()}

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        """One optimizer step of every parameter that has a gradient, and of no other."""
        for name, gradient in gradients.items():
            r = Arithmetic(self.rounding, self.master_formats[name])
            step = stepper(self.recipe.optimizer, self.conventions, r)
            self.counts[name] += 1
            slots = {slot: values[name] for slot, values in self.slots.items()}
            self.masters[name], moved = step(self.masters[name], slots, r(gradient), rate, self.counts[name])
            for slot, value in moved.items():
                self.slots[slot][name] = value
        self.steps += 1

    def advance_schedule(self) -> None:
        """Counts an applied update."""
        self.schedule += 1

    def learning_rate(self) -> float:
        """The rate of the next update."""
        factor = 1.0 if self.recipe.schedule is None else self.recipe.schedule.factor(self.schedule)
        return self.recipe.optimizer.learning_rate * factor

    def sync_masters(self) -> None:
        """Makes the model's weights the rounded masters."""
        for name, master in self.masters.items():
            same = self.formats[name] == self.master_formats[name]
            self.values[name] = master if same else self.rounding.round(master, self.formats[name])

    def optimizer_of(self, name: str) -> int:
        """Number of the optimizer that owns a parameter: places in model order, dealt out in turn."""
        return self._places[name] % self.recipe.optimizers

    # the verbs of the contract

    def update(self, window: Window) -> Update:
        items = sum(batch.items for batch in window)
        for batch in window:
            self.accumulate(batch, items)
        return self.apply()

    def accumulate(self, batch: Batch, items: int) -> float:
        with np.errstate(all="ignore"):
            total, gradients = self._backward(batch, items)
            self._open(items)
            self.window.losses.append((total, batch.items))
            self.take_micro_batch(gradients)
        return self.reported_loss(total, batch.items)

    def gradients(self, window: Window) -> Arrays:
        outer, scaler, self.window = self.window, self.scaler, OpenWindow()
        items = sum(batch.items for batch in window)
        try:
            for batch in window:
                self.accumulate(batch, items)
            if not self.window.unscaled:
                self.unscale_gradients()
            low = self.recipe.precision.level == "O3"
            return {
                name: self._out(gradient, self.formats[name] if low else self.accumulator_format(name))
                for name, gradient in self.window.gradients.items()
            }
        finally:
            self.window, self.scaler = outer, scaler

    def feed(self, *window: Gradients, unscale_calls: int | None = None, poison: Gradients | None = None) -> Update:
        if not window:
            raise ValueError("no gradients were given")
        with np.errstate(all="ignore"):
            for gradients in window:
                given = _present(gradients)
                self._open(len(window))
                self.take_micro_batch(self._fed(given, len(window)))
            calls = 1 if poison is not None and unscale_calls is None else unscale_calls or 0
            try:
                for _ in range(calls):
                    self.unscale_gradients()
            except RuntimeError:
                self.empty_accumulator()
                raise
            for name, value in _present(poison or {}).items():
                self.accumulate_gradient(name, value)
        return self.apply()

    def unscale_gradients(self) -> None:
        """Unscales the window's gradients; `apply` does so where the caller has not.

        Raises:
            RuntimeError: they were unscaled before.
        """
        if self.scaler is None:
            return
        if self.window.unscaled:
            raise RuntimeError("this window's gradients have already been unscaled")
        rule, window = self.conventions.scaler, self.window
        scaled = self.judge() if rule.nonfinite == "scaled" else frozenset()
        window.gradients = {name: self.unscale(name, g) for name, g in window.gradients.items()}
        window.unscaled = True
        if rule.latched:
            window.latched = scaled | self.judge()
        else:
            window.scaled_overflow = scaled

    def apply(self) -> Update:
        window = self.window
        if not window.micro_batches:
            raise RuntimeError("the window is empty: accumulate a micro-batch first")
        rate, skipped, norm = self.learning_rate(), True, None
        if self.window_ended():
            with np.errstate(all="ignore"):
                if not window.unscaled:
                    self.unscale_gradients()
                norm = self.gradient_norm(window.gradients)
                skipped = self._step(rate)
        if self.window_ended() or self.conventions.remainder == "drop":
            self.empty_accumulator()
        items = sum(count for _, count in window.losses)
        return Update(
            loss=self.reported_loss(sum(total for total, _ in window.losses), items),
            micro_losses=tuple(self.reported_loss(total, count) for total, count in window.losses),
            scale_before=window.scale,
            scale_after=1.0 if self.scaler is None else self.scaler.scale,
            good_steps=None if self.scaler is None else self.scaler.good_steps,
            skipped=skipped,
            gradient_norm=norm,
            learning_rate=rate,
        )

    def _step(self, rate: float) -> bool:
        """Updates or skips, and moves the scale; returns whether nothing was applied."""
        window = self.window
        bad: frozenset[int] = frozenset()
        if self.scaler is not None:
            bad = self.judge() | window.scaled_overflow if window.latched is None else window.latched
        good = {name: g for name, g in window.gradients.items() if self.optimizer_of(name) not in bad}
        lost = window.dropped == window.micro_batches
        if good and not lost:
            self.apply_update(self.clip(good), rate)
            self.advance_schedule()
            self.sync_masters()
        if self.scaler is not None and self.conventions.scaler.counts == "updates":
            self.scaler = self.next_scale(self.scaler, not bad and not window.dropped)
        return lost or (bool(bad) and not good)

    def _open(self, items: int) -> None:
        if not self.window.micro_batches:
            self.window.scale = 1.0 if self.scaler is None else self.scaler.scale
        self.window.items = items

    def _backward(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        """The micro-batch's loss sum, and its scaled gradients in the parameters' formats."""
        last = f"{len(self.model.layers) - 1}."
        heads = tuple(f"{last}{head}." for head in batch.targets)
        names = [name for name in self.values if not name.startswith(last) or name.startswith(heads)]
        sums: list[float] = []

        def forward(values: Any) -> list[Any]:
            parameters = {name: Tensor(values[name], self.formats[name], owned=False) for name in names}
            with scope.opened(self.scope):
                losses = list(self.run(parameters, batch).values())
            sums.extend(float(plain(loss.value)) for loss in losses)
            totals = losses if self.recipe.separate_losses else [self._sum(losses)]
            return [self.scale_loss(self.normalise(total, batch.items, items)).value for total in totals]

        _, pullbacks = taped(forward, {name: self.values[name] for name in names})
        return sum(sums), self._pulled(pullbacks)

    def _fed(self, gradients: Arrays, micro_batches: int) -> Arrays:
        """Scaled gradients of Σ p·g over a window of so many micro-batches."""
        if unknown := gradients.keys() - self.masters.keys():
            raise ValueError(f"{self.model.name} has no parameter {min(unknown)!r}")
        if not gradients:
            return {}
        widest = "float64" if any(self.formats[name] == "float64" for name in gradients) else "float32"

        def forward(values: Any) -> list[Any]:
            terms = []
            for name, gradient in gradients.items():
                wide = self.ops.cast(Tensor(values[name], self.formats[name]), widest)
                terms.append(Tensor(anp.sum(wide.value * gradient), widest))
            return [self.scale_loss(self.normalise(self._sum(terms), 1, micro_batches)).value]

        _, pullbacks = taped(forward, {name: self.values[name] for name in gradients})
        return self._pulled(pullbacks)

    def _sum(self, losses: list[Tensor]) -> Tensor:
        total = losses[0]
        for loss in losses[1:]:
            total = self.ops.add(total, loss)
        return total

    def _pulled(self, pullbacks: list[Pullback]) -> Arrays:
        """Gradients of one or more backward passes in the parameters' formats, added where there are several."""
        total: Arrays = {}
        for pull in pullbacks:
            for name, gradient in (pull(np.ones(())) or {}).items():
                rounded_gradient = self.rounding.round(gradient, self.formats[name])
                total[name] = rounded_gradient + total[name] if name in total else rounded_gradient
        return total

    def _out(self, value: Array, format_name: str) -> Array:
        return value.astype(self.rounding.dtype(format_name))

    # what can be read

    def parameters(self) -> Arrays:
        return {name: self._out(value, self.formats[name]) for name, value in self.values.items()}

    def master_parameters(self) -> Arrays:
        return {name: self._out(value, self.master_formats[name]) for name, value in self.masters.items()}

    def optimizer_state(self) -> Arrays:
        moments = {
            f"{slot}/{name}": self._out(value, self.master_formats[name])
            for slot, values in self.slots.items()
            for name, value in values.items()
        }
        counters = {"steps": np.array(self.steps), "schedule": np.array(self.schedule)}
        if self.slots:
            counters |= {f"steps.{name}": np.array(count) for name, count in self.counts.items()}
        return moments | counters

    def buffers(self) -> Arrays:
        return {name: self._out(value, "float32") for name, value in self.statistics.items()}

    def scaler_state(self) -> Arrays:
        if self.scaler is None:
            return {}
        return {"scale": np.array(self.scaler.scale, np.float32), "good_steps": np.array(self.scaler.good_steps)}

    def scaler_settings(self) -> dict[str, float]:
        if self.settings is None:
            return {}
        s = self.settings
        return {"initial": s.scale, "growth": s.growth, "backoff": s.backoff, "interval": float(s.interval)}

    def accumulator(self) -> Arrays:
        return {name: self._out(g, self.accumulator_format(name)) for name, g in self.window.gradients.items()}

    def random_state(self) -> Arrays:
        return {"dropout": np.array([self.recipe.seed, self.draws], np.uint64)}

    def predict(self, inputs: Array) -> Arrays:
        outputs = self.evaluate(self._tensors(), inputs)
        return {name: self._out(output.plain(), output.format) for name, output in outputs.items()}

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(self.calls)

    def saved_bytes(self, batch: Batch) -> int:
        return self.kept_bytes(self._tensors(), batch)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: Tensor(value, self.formats[name], owned=False) for name, value in self.values.items()}

    # save and restore

    def save(self, path: Path) -> None:
        checkpoint.write(path, self.save_state(), self._identity())

    def restore(self, path: Path) -> None:
        self.load_state(checkpoint.read(path, self._identity(), self.save_state()))

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.recipe}"

    def save_state(self) -> Arrays:
        """Everything that tells this moment of the run from another, as named arrays."""
        return snapshot.taken(self)

    def load_state(self, arrays: Arrays) -> None:
        """Goes back to what `save_state` returned."""
        snapshot.put_back(self, arrays)


def _present(gradients: Gradients) -> Arrays:
    return {name: np.asarray(g).astype(np.float64) for name, g in gradients.items() if g is not None}
