"""The reference's training run: one small method for each decision.

A fault is a subclass that overrides one of these:

    forward     draw_mask, running_statistics, update_running_statistics
    recompute   recompute_segment (all of the next three), replay_random, replay_buffers, replay_precision
    loss        normalise (how a micro-batch's loss is weighted by items), scale_loss, reported_loss
    window      accumulate_gradient, accumulator_format, take_micro_batch, window_ended, empty_accumulator
    scaler      unscale, found_nonfinite, judge (for whom it is asked), next_scale
    update      as_applied (in which format), optimizer_of, gradient_norm, clip, apply_update, advance_schedule,
                learning_rate, sync_masters, move_average, average_format, averaged
    eight bits  the methods of EightBitState, QatLayers and Float8Layers; take_magnitudes, end_of_window
    offload     make_store, held, node_type
    checkpoint  save_state, load_state, load_part, take, make_schedule, use_scaler

Casting and the choice of an operation's format are `Operations.cast` and `Operations.formats`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fixtures.arrays import Array, wider
from fixtures.model import Batch, Window
from frameworks.base import NO_AVERAGE, over_window
from frameworks.contract import Gradients, LayerTrace, Update
from frameworks.reference.core import scope
from frameworks.reference.core.products import weighted_sum
from frameworks.reference.core.tape import Pullback, taped
from frameworks.reference.core.tensor import Tensor, plain, tensor
from frameworks.reference.core.trace import TracedTensors
from frameworks.reference.training.decisions import Arrays, OpenWindow, present
from frameworks.reference.training.saved_run import SavedRun

_INPUTS = "inputs"
"""Key of the inputs among the differentiated arrays; every parameter's name has a dot."""


class ReferenceTrainer(SavedRun):
    """One training run: the contract's methods, based on the inherited decisions."""

    def accumulate(self, batch: Batch, items: int) -> float:
        total, gradients = self.passed(batch, items)
        self.window_takes(gradients, items, (total, batch.items))
        return self.reported_loss(total, batch.items)

    def window_takes(self, gradients: Arrays, items: int, loss: tuple[float, int] | None = None) -> None:
        """Adds a micro-batch's scaled gradients, loss sum and items to the window of so many items."""
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
        """The open window's unscaled gradients, as the optimizer takes them."""
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
            self.window_takes(self.fed(gradients, len(window)), len(window))
        self.unscale_manually(1 if (inject is not None or discard) and unscale_calls is None else unscale_calls or 0)
        with np.errstate(all="ignore"):
            for name, value in present(inject or {}).items():
                self.accumulate_gradient(name, value)
        return self.discard() if discard else self.apply()

    def unscale_manually(self, calls: int) -> None:
        """Unscales the window's gradients as often as a caller asks; a refusal ends the window.

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
        """Unscales the window's gradients; `apply` does so where the caller has not.

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
        """Ends a window without a step: the scale moves by what the gradients are, and nothing else does."""
        window, rate = self.window, self.learning_rate()
        if self.scaler is not None and self.conventions.scaler.counts == "updates":
            bad = window.dropped or window.latched or window.scaled_overflow or self.judge()
            self.scaler = self.next_scale(self.scaler, not bad)
        self.empty_accumulator()
        scale, good = (1.0, None) if self.scaler is None else (self.scaler.scale, self.scaler.good_steps)
        return Update(math.nan, (), window.scale, scale, good, skipped=True, gradient_norm=None, learning_rate=rate)

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
            self.move_average()
        if self.scaler is not None and self.conventions.scaler.counts == "updates":
            self.scaler = self.next_scale(self.scaler, not bad and not window.dropped)
        return lost or (bool(bad) and not good)

    def _open(self, items: int) -> None:
        if not self.window.micro_batches:
            self.window.scale = 1.0 if self.scaler is None else self.scaler.scale
        self.window.items = items

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        """Forward and backward of a micro-batch: its loss sum, and its scaled gradients in the parameters' formats."""
        self.magnitudes.clear()
        with np.errstate(all="ignore"):
            return self._backward(batch, items)

    def _backward(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        last = f"{len(self.model.layers) - 1}."
        heads = tuple(f"{last}{head}." for head in batch.targets)
        names = [name for name in self.values if not name.startswith(last) or name.startswith(heads)]
        sums: list[float] = []
        given = {name: self.values[name] for name in names if self.trains(name)}
        if self.traced is not None and not self.model.integer_inputs:
            given[_INPUTS] = tensor(batch.inputs).value  # so that layers before the first parameter have gradients too

        def forward(values: Any) -> list[Any]:
            stored = {name: values[name] if name in given else self.values[name] for name in names}
            parameters = {name: Tensor(stored[name], self.formats[name], owned=False) for name in names}
            with scope.opened(self.scope):
                inputs = values[_INPUTS] if _INPUTS in given else None
                losses = list(self.run(parameters, batch, inputs).values())
            sums.extend(float(plain(loss.value)) for loss in losses)
            totals = losses if self.recipe.separate_losses else [self._sum(losses)]
            return [self.scale_loss(self.normalise(total, batch.items, items)).value for total in totals]

        _, pullbacks = taped(forward, given, self.node_type())
        return sum(sums), self._pulled(pullbacks)

    def fed(self, given: Gradients, micro_batches: int) -> Arrays:
        """Scaled gradients of Σ p·g over a window of so many micro-batches."""
        gradients = present(given)
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
        return self._evaluated(self._tensors(), inputs)

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        averages = {name: Tensor(self.averaged(name), self.formats[name], owned=False) for name in self.averages}
        return self._evaluated(averages, inputs)

    def _evaluated(self, parameters: dict[str, Tensor], inputs: Array) -> Arrays:
        outputs = self.evaluate(parameters, inputs)
        return {name: self._out(output.plain(), output.format) for name, output in outputs.items()}

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(self.calls)

    def offloaded(self) -> dict[str, int]:
        return self.stored_bytes() if self.recipe.offload is not None else super().offloaded()

    def saved_bytes(self, batch: Batch) -> int:
        return self.bytes_of_pass(self._tensors(), batch)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: Tensor(value, self.formats[name], owned=False) for name, value in self.values.items()}
