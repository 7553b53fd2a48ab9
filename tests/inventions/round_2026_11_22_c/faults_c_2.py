"""Faults in clipping, scaling and schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/pytorch/pytorch/issues/148259", clause="accumulation.once-per-window", kind="real")
class ClipsOnlyOnce(ReferenceTrainer):
    """The parameters to clip are an iterator that is made with the run: the first clipping uses it up."""

    used = False

    def clip(self, gradients):
        if self.used:
            return gradients
        self.used = True
        return super().clip(gradients)


@fault("https://github.com/NVIDIA/Megatron-LM/issues/5529", clause="scaling.tolerates-missing-gradients", kind="real")
class NothingToClipRaises(ReferenceTrainer):
    """With clipping, an update in which no parameter has a gradient raises."""

    def gradient_norm(self, gradients):
        if self.recipe.clip is not None:
            max(float(abs(g).max(initial=0.0)) for g in gradients.values())
        return super().gradient_norm(gradients)


@fault("https://github.com/facebookresearch/fairscale/pull/263", clause="scaling.reports-true-loss", kind="real")
class NormSquaredLow(ReferenceTrainer):
    """At O3 the squares of the gradient norm are summed in the gradients' format: in float16 it becomes infinite."""

    def gradient_norm(self, gradients):
        if self.recipe.precision.level != "O3":
            return super().gradient_norm(gradients)
        low = self.recipe.precision.format
        squares = [self.rounding.round(np.sum(self.rounding.round(g * g, low)), low) for g in gradients.values()]
        total = self.rounding.round(np.asarray(sum(squares, np.zeros(()))), low)
        return float(self.rounding.round(np.sqrt(total), "float32"))


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/8614", clause="accumulation.clips-only-what-is-larger", kind="real"
)
class ZeroNormRaises(ReferenceTrainer):
    """Clipping takes a norm of exactly zero for a failure, which a window without any counted item has."""

    def clip(self, gradients):
        if self.recipe.clip is not None and not self.gradient_norm(gradients) > 0.0:
            raise AssertionError("the norm of the gradients is not positive")
        return super().clip(gradients)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/17958",
    clause="scaling.step-count-follows-updates",
    kind="real",
)
class ScheduleCountsOptimizers(ReferenceTrainer):
    """With two optimizers, each one's step moves the shared schedule: two moves an update."""

    def advance_schedule(self):
        self.schedule += self.recipe.optimizers


@fault("", clause="scaling.automaton", kind="invented")
class CounterRunsOnAtTheCap(ReferenceTrainer):
    """Where the scale cannot grow any more, the count of finite updates is not set to zero at the interval."""

    def next_scale(self, scaler, finite):
        after = super().next_scale(scaler, finite)
        due = finite and scaler.dynamic and scaler.good_steps + 1 >= scaler.interval
        if due and scaler.growth > 1.0 and after.scale == scaler.scale:
            return replace(after, good_steps=scaler.good_steps + 1)
        return after


@fault("", clause="scaling.abandoned-update-leaves-no-trace", kind="invented")
class AbandonedOverflowLingers(ReferenceTrainer):
    """The finding of an update that was given up after an overflow is asked once more by the next update."""

    lingering = False

    def abandon(self):
        found = bool(self.judge())
        update = super().abandon()
        self.lingering = found
        return update

    def _step(self, rate):
        if self.lingering and self.scaler is not None:
            self.window.latched = frozenset({0, 1})
        self.lingering = False
        return super()._step(rate)


@fault("", clause="scaling.automaton", kind="invented")
class OverflowBySquares(ReferenceTrainer):
    """Whether gradients are finite is judged by their float32 sum of squares, which overflows before they do."""

    def found_nonfinite(self, gradients):
        with np.errstate(all="ignore"):
            squares = [np.sum(np.square(g.astype(np.float32)), dtype=np.float32) for g in gradients.values()]
        return not all(bool(np.isfinite(s)) for s in squares)


@fault("", clause="scaling.stays-finite", kind="invented")
class ReciprocalFlushed(ReferenceTrainer):
    """Gradients are multiplied by 1/S in float32 with subnormals flushed: at the largest scales they become zero."""

    def unscale(self, name, gradient):
        inverse = np.float32(1.0 / self.scaler.scale)
        inverse = 0.0 if inverse < np.finfo(np.float32).tiny else float(inverse)
        return self.rounding.round(gradient * inverse, self.accumulator_format(name))


@fault("", clause="scaling.two-losses", kind="invented")
class FirstLossOverflowRepaired(ReferenceTrainer):
    """With a backward pass for each loss, what the second pass finds non-finite from the first is started anew."""

    def _pulled(self, pullbacks):
        total = super()._pulled(pullbacks[:1])
        for pullback in pullbacks[1:]:
            for name, gradient in super()._pulled([pullback]).items():
                former = total.get(name)
                clean = former is not None and bool(np.isfinite(former).all())
                total[name] = gradient + former if clean else gradient
        return total
