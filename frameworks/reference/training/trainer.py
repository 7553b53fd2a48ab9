"""The reference's training run, its save and restore, and the training loop of its library modes.

A fault is a subclass of `ReferenceTrainer` that overrides one of these methods:

    forward     draw_mask, running_statistics, update_running_statistics
    recompute   recompute_segment (all of the next three), replay_random, replay_buffers, replay_precision
    loss        normalise (how a micro-batch's loss is weighted by items), scale_loss, reported_loss
    window      accumulate_gradient, accumulator_format, take_micro_batch, window_ended, empty_accumulator
    scaler      unscale, has_nonfinite, judge (which optimizers skip), next_scale
    update      as_applied (in which format), optimizer_of, gradient_norm, clip, apply_update, advance_schedule,
                learning_rate, sync_masters, move_average, average_format, read_average
    eight bits  the methods of EightBitState, QatLayers and Float8Layers; take_magnitudes, end_of_window
    offload     make_store, storage, node_type
    checkpoint  save_state, load_state, load_part, take, make_schedule, use_scaler

Casting and the choice of an operation's format are `Operations.cast` and `Operations.formats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fixtures.arrays import Array, wider
from fixtures.data import exact_batch
from fixtures.model import Batch, Model, Window
from fixtures.models import exact_linear, scalar
from fixtures.recipe import BFLOAT16, SGD, DynamicScaling, FormatName, Precision, Recipe
from frameworks.base import NO_AVERAGE, BaseTrainer, of_same_class, over_window
from frameworks.contract import Gradients, LayerTrace, LiveValues, LoadedRun, LoadOrder, Trainer, Update
from frameworks.reference.core import checkpoint, scope
from frameworks.reference.core.network import TracedTensors
from frameworks.reference.core.primitives import weighted_sum
from frameworks.reference.core.tape import Pullback, Tensor, plain, record_pullbacks, tensor
from frameworks.reference.quantization.eight_bit_state import parts_of
from frameworks.reference.training.decisions import Arrays, Decisions, OpenWindow, present

PARTS = ("model", "optimizer", "schedule", "scaler", "window")


class PartByPart(Protocol):
    """A run whose parts can be made and loaded one by one."""

    def load_part(self, part: str, arrays: dict[str, Array]) -> None:
        """Restores one of `PARTS`."""

    def make_schedule(self, applied: int = 0) -> None:
        """Creates the schedule at the state after `applied` applied updates."""

    def use_scaler(self) -> None:
        """Scales a loss and discards it."""


def copy_state(run: Decisions) -> dict[str, Array]:
    """Copies of a run's full state, as named arrays."""
    window = run.window
    arrays: dict[str, Array] = {
        "counters": np.array([run.steps, run.schedule, run.draws, window.items, window.micro_batches, window.dropped]),
        "counts": np.array(list(run.counts.values())),
        "scaler": np.array([] if run.scaler is None else [run.scaler.scale, run.scaler.good_steps], np.float64),
        "window_scale": np.array(window.scale),
        "window_flags": np.array([window.unscaled, window.latched is not None]),
        "window_latched": np.array(sorted(window.latched or ()), np.int64),
        "window_scaled_overflow": np.array(sorted(window.scaled_overflow), np.int64),
        "window_losses": np.array([loss for loss, _ in window.losses], np.float64),
        "window_loss_items": np.array([items for _, items in window.losses], np.int64),
    }
    groups: dict[str, Mapping[str, Array]] = {
        "value": run.values,
        "master": run.masters,
        "average": run.averages,
        "statistics": run.statistics,
        "window": window.gradients,
        "seen": {name: np.array(most) for name, most in window.amax.items()},
    }
    for slot, moments in run.slots.items():
        groups |= parts_of(slot, moments)
    return arrays | {
        f"{group}/{name}": value.copy() for group, members in groups.items() for name, value in members.items()
    }


def put_back(run: Decisions, arrays: dict[str, Array], parts: Sequence[str] = PARTS) -> None:
    """Restores these parts of a state that `copy_state` returned."""
    for part in parts:
        _PUT_BACK[part](run, arrays)


def put_back_in(run: PartByPart, arrays: dict[str, Array], order: LoadOrder) -> None:
    """As `put_back`, for a new run whose parts are made and loaded in this order."""
    parts = list(PARTS)
    match order:
        case "optimizer-first":
            parts.reverse()
        case "schedule-made-last" | "schedule-made-there":
            parts.remove("schedule")
        case "scaler-used":
            run.use_scaler()
    for part in parts:
        run.load_part(part, arrays)
    if order == "schedule-made-there":
        run.make_schedule(int(arrays["counters"][1]))
    elif "schedule" not in parts:
        run.make_schedule()
        run.load_part("schedule", arrays)


def _group(arrays: dict[str, Array], name: str) -> dict[str, Array]:
    return {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}


def _put_model(run: Decisions, arrays: dict[str, Array]) -> None:
    run.statistics = _group(arrays, "statistics")
    run.values = run.storage("parameters", "value", _group(arrays, "value"))
    run.averages = _group(arrays, "average")
    run.draws = int(arrays["counters"][2])


def _put_optimizer(run: Decisions, arrays: dict[str, Array]) -> None:
    run.steps = int(arrays["counters"][0])
    run.counts = dict(zip(run.counts, (int(c) for c in arrays["counts"]), strict=True))
    run.masters = run.storage("parameters", "master", _group(arrays, "master"))
    run.slots = {
        slot: run.moments(slot, {part: _group(arrays, part) for part in parts_of(slot, moments)})
        for slot, moments in run.slots.items()
    }


def _put_schedule(run: Decisions, arrays: dict[str, Array]) -> None:
    run.schedule = int(arrays["counters"][1])


def _put_scaler(run: Decisions, arrays: dict[str, Array]) -> None:
    if run.scaler is not None:
        scale, good_steps = arrays["scaler"]
        run.scaler = run.scaler.at(float(scale), int(good_steps))


def _put_window(run: Decisions, arrays: dict[str, Array]) -> None:
    run.window = _window(run.window, arrays, _group(arrays, "window"))
    run.window.amax = {name: float(most) for name, most in _group(arrays, "seen").items()}
    run.window.items, run.window.micro_batches, run.window.dropped = (int(v) for v in arrays["counters"][3:])


_PUT_BACK: Mapping[str, Callable[[Decisions, dict[str, Array]], None]] = {
    "model": _put_model,
    "optimizer": _put_optimizer,
    "schedule": _put_schedule,
    "scaler": _put_scaler,
    "window": _put_window,
}


def _window(former: OpenWindow, arrays: dict[str, Array], gradients: dict[str, Array]) -> OpenWindow:
    unscaled, latched = (bool(flag) for flag in arrays["window_flags"])
    losses = zip(arrays["window_loss_items"], arrays["window_losses"], strict=True)
    return type(former)(
        gradients=gradients,
        losses=[(float(loss), int(count)) for count, loss in losses],
        scale=float(arrays["window_scale"]),
        unscaled=unscaled,
        scaled_overflow=frozenset(int(i) for i in arrays["window_scaled_overflow"]),
        latched=frozenset(int(i) for i in arrays["window_latched"]) if latched else None,
    )


class SavedRun(Decisions, BaseTrainer):
    """A run that can be saved to files, restored, and copied to other runs."""

    def save(self, path: Path) -> None:
        checkpoint.write(path, self.save_state(), self._identity(), compressed=self.recipe.way("save") == "compressed")

    def restore(self, path: Path) -> None:
        self.load_state(checkpoint.read(path, self._identity(), self.save_state()))

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        put_back_in(self, checkpoint.read(path, self._identity(), self.save_state()), order)

    def take(self, other: Trainer) -> None:
        self.load_state(of_same_class(self, other).save_state())

    def views(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().views(), LiveValues: self.save_state}

    def freeze(self, names: Collection[str]) -> None:
        self.frozen = frozenset(names).union(self.recipe.frozen)

    def load_part(self, part: str, arrays: Arrays) -> None:
        """Restores one of `PARTS` from a state that `save_state` returned."""
        put_back(self, arrays, (part,))

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.replace(offload=None)}"

    def save_state(self) -> Arrays:
        """The full state of the run, as named arrays."""
        return copy_state(self)

    def load_state(self, arrays: Arrays) -> None:
        """Restores the state that `save_state` returned."""
        put_back(self, arrays)


_INPUTS = "inputs"
"""Key of the inputs among the differentiated arrays; every parameter's name has a dot."""


class ReferenceTrainer(SavedRun):
    """One training run: the methods of `Trainer`, which call the inherited decisions."""

    def accumulate(self, batch: Batch, items: int) -> float:
        total, gradients = self.run_pass(batch, items)
        self.window_takes(gradients, items, (total, batch.items))
        return self.reported_loss(total, batch.items)

    def window_takes(self, gradients: Arrays, items: int, loss: tuple[float, int] | None = None) -> None:
        """Adds a micro-batch's scaled gradients, and its loss sum with its items, to a window of `items` items."""
        self._open(items)
        if loss is not None:
            self.window.losses.append(loss)
        dropped, magnitudes, self.magnitudes = self.window.dropped, self.magnitudes, {}
        with np.errstate(all="ignore"):
            self.take_micro_batch(gradients)
            if self.window.dropped == dropped:
                self.take_magnitudes(magnitudes)

    def gradients(self, window: Window) -> Arrays:
        outer, scaler, self.window = self.window, self.scaler, OpenWindow()
        try:
            over_window(window, self.accumulate)
            return self.unscaled_gradients()
        finally:
            self.window, self.scaler = outer, scaler

    def unscaled_gradients(self) -> Arrays:
        """The open window's unscaled gradients, in the format that the optimizer gets."""
        if not self.window.unscaled:
            self.unscale_gradients()
        return {
            name: self._out(self.as_applied(name, gradient), self.master_formats[name])
            for name, gradient in self.window.gradients.items()
        }

    def trace(self, batch: Batch) -> LayerTrace:
        scale = 1.0 if self.scaler is None else self.scaler.scale
        self.traced = traced = TracedTensors(self.rounding)
        try:
            parameters = self.gradients((batch,))
        finally:
            self.traced = None
        with np.errstate(all="ignore"):
            outputs = {path: self._out(value, name) for path, (value, name) in traced.outputs.items()}
            gradients = {
                path: self._out(traced.gradients[path] / scale, name if scale == 1.0 else wider(name, "float32"))
                for path, (_, name) in traced.outputs.items()
                if path in traced.gradients
            }
        return LayerTrace(outputs, gradients, parameters)

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if not window:
            raise ValueError("no gradients were given")
        for gradients in window:
            self.window_takes(self.backpropagate_gradients(gradients, len(window)), len(window))
        self.unscale_manually(1 if (inject is not None or discard) and unscale_calls is None else unscale_calls or 0)
        with np.errstate(all="ignore"):
            for name, value in present(inject or {}).items():
                self.accumulate_gradient(name, value)
        return self.discard() if discard else self.apply()

    def unscale_manually(self, calls: int) -> None:
        """Unscales the window's gradients `calls` times; an error ends the window.

        Raises:
            RuntimeError: they were unscaled before.
        """
        try:
            for _ in range(calls):
                self.unscale_gradients()
        except RuntimeError:
            self.empty_accumulator()
            raise

    def unscale_gradients(self) -> None:
        """Unscales the window's gradients; `apply` calls it unless the caller already has.

        Raises:
            RuntimeError: they were unscaled before.
        """
        if self.scaler is None:
            return
        if self.window.unscaled:
            raise RuntimeError("this window's gradients have already been unscaled")
        rule, window = self.conventions.scaler, self.window
        with np.errstate(all="ignore"):
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
                norm = self.gradient_norm(window.gradients) if window.gradients else None
                skipped = self._step(rate)
                self.end_of_window(skipped)
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

    def discard(self) -> Update:
        """Ends a window without a step: the gradients adjust the loss scale, and nothing else changes."""
        window, rate = self.window, self.learning_rate()
        if self.scaler is not None and self.conventions.scaler.counts == "updates":
            bad = window.dropped or window.latched or window.scaled_overflow or self.judge()
            self.scaler = self.next_scale(self.scaler, not bad)
        self.empty_accumulator()
        scale, good = (1.0, None) if self.scaler is None else (self.scaler.scale, self.scaler.good_steps)
        return Update(math.nan, (), window.scale, scale, good, skipped=True, gradient_norm=None, learning_rate=rate)

    def _step(self, rate: float) -> bool:
        """Updates or skips, and adjusts the loss scale; returns True if no optimizer applied an update."""
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
            self.move_average()
        if self.scaler is not None and self.conventions.scaler.counts == "updates":
            self.scaler = self.next_scale(self.scaler, not bad and not window.dropped)
        return lost or (bool(bad) and not good)

    def _open(self, items: int) -> None:
        if not self.window.micro_batches:
            self.window.scale = 1.0 if self.scaler is None else self.scaler.scale
        self.window.items = items

    def run_pass(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        """Forward and backward of a micro-batch: its loss sum, and its scaled gradients in the parameters' formats."""
        self.magnitudes.clear()
        with np.errstate(all="ignore"):
            return self._backward(batch, items)

    def _backward(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        last = f"{len(self.model.layers) - 1}."
        heads = tuple(f"{last}{head}." for head in batch.targets)
        names = [name for name in self.values if not name.startswith(last) or name.startswith(heads)]
        sums: list[float] = []
        leaves = {name: self.values[name] for name in names if self.trains(name)}
        if self.traced is not None and not self.model.integer_inputs:
            leaves[_INPUTS] = tensor(batch.inputs).value  # so that layers before the first parameter have gradients too

        def forward(values: Any) -> list[Any]:
            stored = {name: values[name] if name in leaves else self.values[name] for name in names}
            parameters = {name: Tensor(stored[name], self.formats[name], owned=False) for name in names}
            with scope.open_scope(self.scope):
                inputs = values[_INPUTS] if _INPUTS in leaves else None
                losses = list(self.run(parameters, batch, inputs).values())
            sums.extend(float(plain(loss.value)) for loss in losses)
            totals = losses if self.recipe.separate_losses else [self._sum(losses)]
            return [self.scale_loss(self.normalise(total, batch.items, items)).value for total in totals]

        _, pullbacks = record_pullbacks(forward, leaves, self.node_type())
        return sum(sums), self._run_pullbacks(pullbacks)

    def backpropagate_gradients(self, coefficients: Gradients, micro_batches: int) -> Arrays:
        """Scaled gradients of Σ p·g, normalised for a window of `micro_batches` micro-batches."""
        gradients = present(coefficients)
        if unknown := gradients.keys() - self.masters.keys():
            raise ValueError(f"{self.model.name} has no parameter {min(unknown)!r}")
        gradients = {name: gradient for name, gradient in gradients.items() if self.trains(name)}
        if not gradients:
            return {}
        widest = "float64" if any(self.formats[name] == "float64" for name in gradients) else "float32"

        def forward(values: Any) -> list[Any]:
            terms = []
            for name, gradient in gradients.items():
                wide = self.ops.cast(Tensor(values[name], self.formats[name]), widest)
                terms.append(Tensor(weighted_sum(wide.value, gradient), widest))
            return [self.scale_loss(self.normalise(self._sum(terms), 1, micro_batches)).value]

        with np.errstate(all="ignore"):
            _, pullbacks = record_pullbacks(forward, {name: self.values[name] for name in gradients})
            return self._run_pullbacks(pullbacks)

    def _sum(self, losses: list[Tensor]) -> Tensor:
        total = losses[0]
        for loss in losses[1:]:
            total = self.ops.add(total, loss)
        return total

    def _run_pullbacks(self, pullbacks: list[Pullback]) -> Arrays:
        """Runs one or more backward passes and adds their gradients, in the parameters' formats."""
        total: Arrays = {}
        for pull in pullbacks:
            for name, gradient in (pull(np.ones(())) or {}).items():
                if name == _INPUTS:
                    continue
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
        averages = {f"average/{n}": self._out(value, self.average_format(n)) for n, value in self.averages.items()}
        counters = {"steps": np.array(self.steps), "schedule": np.array(self.schedule)}
        if self.slots:
            counters |= {f"steps.{name}": np.array(count) for name, count in self.counts.items()}
        return self.moments_as_stored() | averages | counters

    def buffers(self) -> Arrays:
        return {name: self._out(value, "float32") for name, value in self.statistics.items()}

    def scaler_state(self) -> Arrays:
        if self.scaler is None:
            return {}
        return {"scale": np.array(self.scaler.scale, np.float32), "good_steps": np.array(self.scaler.good_steps)}

    def scaler_settings(self) -> dict[str, float]:
        if (s := self.settings) is None:
            return {}
        return {"initial": s.scale, "growth": s.growth, "backoff": s.backoff, "interval": float(s.interval)}

    def accumulator(self) -> Arrays:
        return {name: self._out(g, self.accumulator_format(name)) for name, g in self.window.gradients.items()}

    def random_state(self) -> Arrays:
        return {"dropout": np.array([self.recipe.seed, self.draws], np.uint64)}

    def predict(self, inputs: Array) -> Arrays:
        return self._evaluate(self._tensors(), inputs)

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        averages = {name: Tensor(self.read_average(name), self.formats[name], owned=False) for name in self.averages}
        return self._evaluate(averages, inputs)

    def _evaluate(self, parameters: dict[str, Tensor], inputs: Array) -> Arrays:
        outputs = self.evaluate(parameters, inputs)
        return {name: self._out(output.plain(), output.format) for name, output in outputs.items()}

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(self.calls)

    def offloaded_bytes(self) -> dict[str, int]:
        return self.stored_bytes() if self.recipe.offload is not None else super().offloaded_bytes()

    def saved_bytes(self, batch: Batch) -> int:
        return self.bytes_of_pass(self._tensors(), batch)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: Tensor(value, self.formats[name], owned=False) for name, value in self.values.items()}


class ReferenceLoop:
    """The training loop of a library: schedule steps, clipping, hooks and loaded checkpoints. Faults override a method.

    Args:
        run: creates a run of a model and a recipe.
    """

    def __init__(self, run: Callable[[Model, Recipe], ReferenceTrainer]) -> None:
        self.run = run

    def count_schedule_steps(self, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        """The steps of the schedule after each update."""
        trainer = self.run(exact_linear(), Recipe(SGD(2.0**-8), accumulation=accumulation))
        counts: list[int] = []
        steps = updates = micro_batches = 0
        for length in epochs:
            for position in range(1, length + 1):
                micro_batches += 1
                trainer.accumulate(exact_batch(2), 2 * accumulation)
                if position % accumulation and position < length:
                    continue
                trainer.apply()
                updates += 1
                steps += self.is_due(frequency, updates, micro_batches, position)
                counts.append(steps)
        return tuple(counts)

    def is_due(self, frequency: int, updates: int, micro_batches: int, position: int) -> bool:
        """Returns whether the schedule steps after the current update.

        Args:
            updates: number of updates of the run so far.
            micro_batches: number of micro-batches of the run so far.
            position: number of micro-batches of the epoch so far.
        """
        return updates % frequency == 0

    def clip(self, gradient: Array, limit: float, scale: float) -> Array:
        """The gradient that a step applies, after it was clipped to the norm `limit`."""
        name = "0.output.bias"
        trainer = self.run(exact_linear(), Recipe(SGD(), scaling=DynamicScaling(initial=scale), clip=limit))
        return trainer.clip({name: trainer.unscale(name, np.asarray(gradient) * scale)})[name]

    def load_and_train(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        """The result of loading a checkpoint in this format, whose weights are 1, and training it."""
        trainer = self.run(scalar(1.0), Recipe(SGD(rate), self.precision(saved)))
        before = trainer.master_parameters()
        for _ in range(updates):
            trainer.apply_gradients({name: np.ones_like(value) for name, value in trainer.parameters().items()})
        moved = [value != before[name] for name, value in trainer.master_parameters().items()]
        loaded = next(iter(before.values())).dtype.name
        return LoadedRun(loaded, sum(int(mask.sum()) for mask in moved), sum(mask.size for mask in moved), warned=False)

    def precision(self, saved: FormatName) -> Precision:
        """The precision in which a checkpoint in this format is trained under a request for mixed bfloat16."""
        return BFLOAT16

    def run_hook(self, gradient: Array, scale: float) -> Array:
        """The gradient that a hook before the optimizer step reads."""
        trainer = self.run(exact_linear(), Recipe(SGD(), scaling=DynamicScaling(initial=scale)))
        unscaled = trainer.unscale("0.output.bias", np.asarray(gradient) * scale)
        return self.hook_gradient(unscaled, scale)

    def hook_gradient(self, unscaled: Array, scale: float) -> Array:
        """The gradient that the hook reads, given the unscaled one and the loss scale."""
        return unscaled
