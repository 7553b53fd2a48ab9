"""Faults in accumulation and recomputation."""

from __future__ import annotations

import numpy as np

from frameworks.reference import scope
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("", clause="accumulation.each-counts-once", kind="invented")
class EmptyMicroBatchEmpties(ReferenceTrainer):
    """A micro-batch without any counted item clears what the window has gathered before it."""

    def accumulate(self, batch, items):
        if not batch.items:
            self.window.gradients = {}
        return super().accumulate(batch, items)


@fault("https://github.com/mflux-community/mflux/pull/447", clause="accumulation.nonfinite-micro-batch", kind="real")
class NonFiniteMicroBatchRestarts(ReferenceTrainer):
    """A micro-batch that is not finite clears the window and is left out; what follows it is applied as the window."""

    def take_micro_batch(self, gradients):
        if self.scaler is not None and self.recipe.accumulation > 1 and self.found_nonfinite(gradients):
            self.window.gradients = {}
            gradients = {}
        super().take_micro_batch(gradients)


@fault("", clause="accumulation.keeps-precision", kind="invented")
class OneElementNarrow(ReferenceTrainer):
    """Parameters of one element are accumulated as float32 numbers, also those of float64 heads."""

    def accumulator_format(self, name):
        return "float32" if self.masters[name].size == 1 else super().accumulator_format(name)


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceJoinsWindow(ReferenceTrainer):
    """What is looked at by a trace inside an open window is added to that window."""

    def trace(self, batch):
        opened = self.window.micro_batches
        shown = super().trace(batch)
        for name, gradient in shown.parameters.items() if opened else ():
            self.accumulate_gradient(name, gradient.astype(np.float64) * self.window.scale)
        return shown


@fault("", clause="accumulation.remainder", kind="invented")
class FlushKeepsSchedule(ReferenceTrainer):
    """The update of an incomplete window that is flushed is not counted by the schedule."""

    def advance_schedule(self):
        if self.window.micro_batches >= self.recipe.accumulation:
            super().advance_schedule()


@fault("", clause="accumulation.missing-gradients-count", kind="invented")
class LateGradientForgotten(ReferenceTrainer):
    """The accumulator is laid out by the first micro-batch of a window: what has its first gradient later is lost,
    but for the run's first window.
    """

    def accumulate_gradient(self, name, gradient):
        if self.steps and self.window.micro_batches > 1 and name not in self.window.gradients:
            return
        super().accumulate_gradient(name, gradient)


@fault("", clause="recompute.with-accumulation", kind="invented")
class StreamOfTheWindow(ReferenceTrainer):
    """The state of the random stream that recomputation goes back to is noted once a window, not once a micro-batch."""

    here = start = 0

    def accumulate(self, batch, items):
        self.here = self.draws
        if not self.window.micro_batches:
            self.start = self.draws
        return super().accumulate(batch, items)

    def replay_random(self, draws):
        return super().replay_random(draws if draws < self.here else draws - self.here + self.start)


@fault("", clause="recompute.with-scaling", kind="invented")
class SegmentsSaturate(ReferenceTrainer):
    """Gradients of recomputed segments are clamped to the largest float16 number: an overflow in them goes unseen."""

    def _pulled(self, pullbacks):
        gradients = super()._pulled(pullbacks)
        if self.recipe.recompute is None:
            return gradients
        last = f"{len(self.model.layers) - 1}."
        return {
            name: g if name.startswith(last) else np.nan_to_num(g, nan=0.0, posinf=65504.0, neginf=-65504.0)
            for name, g in gradients.items()
        }


@fault("", clause="recompute.runs-forward-once-more", kind="invented")
class LastSegmentPlain(ReferenceTrainer):
    """The last of several segments is kept instead of recomputed, since backward comes to it first."""

    def _segment(self, index, layers, parameters, x):
        if self.recipe.recompute is None or index == 0 or index < len(self.segments) - 1:
            return super()._segment(index, layers, parameters, x)
        self.calls[index] += 1
        return self._pass(parameters, True).layers(layers, x)


@fault("https://github.com/modelscope/ms-swift/pull/10142", clause="recompute.no-grad-input", kind="real")
class SecondSegmentUntrained(ReferenceTrainer):
    """Whether a segment is trained is asked of the first one alone: if that has no parameter, those of the second
    segment, whose input needs no gradient either, get none.
    """

    def _pulled(self, pullbacks):
        gradients = super()._pulled(pullbacks)
        if self.recipe.recompute is None or len(self.segments) < 2:
            return gradients
        first, second = (tuple(f"{path}." for path, _ in layers) for layers in self.segments[:2])
        if any(name.startswith(first) for name in self.values):
            return gradients
        return {name: g for name, g in gradients.items() if not name.startswith(second)}


@fault("", clause="recompute.same-state", kind="invented")
class NormCountsSegmentsTwice(ReferenceTrainer):
    """With recomputation, gradients of recomputed segments enter the norm once a forward pass: twice."""

    def gradient_norm(self, gradients):
        if self.recipe.recompute is None:
            return super().gradient_norm(gradients)
        last = f"{len(self.model.layers) - 1}."
        again = {f"again.{name}": g for name, g in gradients.items() if not name.startswith(last)}
        return super().gradient_norm({**gradients, **again})


@fault("", clause="recompute.failure-leaves-no-trace", kind="invented")
class FailedRerunEndsScope(ReferenceFramework):
    """When the function raises as it is run again, the precision scope around the call is left as well."""

    def recompute(self, case, x, w, variant=None):
        try:
            return super().recompute(case, x, w, variant)
        except RuntimeError:
            scope.enter(scope.Scope())
            raise


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class LookingBacksOff(ReferenceTrainer):
    """Gradients that are only asked for, or shown by a trace, make the scale back off if they are not finite."""

    def gradients(self, window):
        asked = super().gradients(window)
        if self.scaler is not None and not all(np.isfinite(g.astype(np.float64)).all() for g in asked.values()):
            self.scaler = self.next_scale(self.scaler, False)
        return asked
