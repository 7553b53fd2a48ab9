"""Faults of optimizers, schedules, windows and the loss scale."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import SGD
from frameworks.contract import LayerTrace
from frameworks.reference.decisions import Arrays, OpenWindow
from frameworks.reference.scaler import LossScale
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault(
    "https://github.com/deepspeedai/DeepSpeed/pull/7969",
    clause="accumulation.groups-change-nothing",
    kind="real",
)
class SecondGroupStartsAtBaseRate(ReferenceTrainer):
    """Until the first update is applied, a schedule sets the rate of the first of two parameter groups alone.

    The second group, the parameters at odd places, makes its first update with the optimizer's base rate.
    """

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if self.recipe.groups == 1 or self.recipe.schedule is None or self.schedule:
            super().apply_update(gradients, rate)
            return
        steps = self.steps
        for group, own_rate in enumerate((rate, self.recipe.optimizer.learning_rate)):
            self.steps = steps
            own = {name: g for name, g in gradients.items() if self._places[name] % 2 == group}
            super().apply_update(own, own_rate)


@fault("", clause="laws.programs", kind="invented")
class ZeroFactorIsNone(ReferenceTrainer):
    """A schedule's factor of exactly 0 is taken for no factor, so that such an update is made with the base rate."""

    def learning_rate(self) -> float:
        factor = 0.0 if self.recipe.schedule is None else self.recipe.schedule.factor(self.schedule)
        return self.recipe.optimizer.learning_rate * (factor or 1.0)


@fault("", clause="laws.second-run", kind="invented")
class ScheduleOfTheFirstRun(ReferenceTrainer):
    """The factors of a schedule are remembered for the whole process by its boundaries and the number of updates.

    A later run whose schedule has the same boundaries and other factors gets the factors of the earlier run, for every
    update that the earlier run has come to.
    """

    remembered: ClassVar[dict[tuple[tuple[int, ...], int], float]] = {}

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if schedule is None:
            return super().learning_rate()
        factor = self.remembered.setdefault((schedule.boundaries, self.schedule), schedule.factor(self.schedule))
        return self.recipe.optimizer.learning_rate * factor


@fault("https://github.com/chainer/chainer/issues/1913", clause="scaling.tolerates-missing-gradients", kind="real")
class MomentumWithoutGradient(ReferenceTrainer):
    """Under momentum, a parameter that has been updated before and gets no gradient in a window is still updated.

    Its missing gradient counts as zeros, so that its momentum decays and moves it.
    """

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer = self.recipe.optimizer
        if isinstance(optimizer, SGD) and optimizer.momentum:
            missing = [name for name, count in self.counts.items() if count and name not in self.window.gradients]
            gradients = gradients | {name: np.zeros_like(self.masters[name]) for name in missing}
        super().apply_update(gradients, rate)


@fault("https://github.com/coqui-ai/Trainer/pull/76", clause="accumulation.each-counts-once", kind="real")
class AppliedGradientsStay(ReferenceTrainer):
    """Where an overflow skips one of two optimizers, the accumulator keeps the gradients of the one that was applied.

    They are there, unscaled, when the next window begins, and are unscaled once more and applied again with it.
    """

    applied: frozenset[str] = frozenset()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.applied = frozenset(gradients)

    def empty_accumulator(self) -> None:
        held, applied, self.applied = self.window.gradients, self.applied, frozenset()
        partly = self.recipe.optimizers == 2 and bool(applied) and bool(held.keys() - applied)
        super().empty_accumulator()
        if partly:
            self.window = OpenWindow(gradients={name: g for name, g in held.items() if name in applied})


@fault("", clause="scaling.grows-after-interval", kind="invented")
class GrowthCounterInFloat16(ReferenceTrainer):
    """The loss scale's growth counter is kept in float16, in which 2,048 + 1 is 2,048.

    It stands still there, and with an interval above 2,049 the scale never grows.
    """

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        return replace(moved, good_steps=int(np.float16(moved.good_steps)))


@fault("", clause="laws.scales", kind="invented")
class UnscalesInFloat32(ReferenceTrainer):
    """Under a loss scale, unscaled gradients are rounded to float32 also where the parameter is float64."""

    def unscale(self, name: str, gradient: Array) -> Array:
        return self.rounding.round(super().unscale(name, gradient), "float32")


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceByTheInitialScale(ReferenceTrainer):
    """The gradients of layers' outputs that a trace shows are divided by the initial loss scale, not the present one.

    Outputs, and the gradients of parameters, are right.
    """

    def trace(self, batch: Batch) -> LayerTrace:
        shown = super().trace(batch)
        if self.scaler is None or self.settings is None or self.scaler.scale == self.settings.scale:
            return shown
        factor = self.scaler.scale / self.settings.scale
        wrong = {path: (g.astype(np.float64) * factor).astype(g.dtype) for path, g in shown.gradients.items()}
        return replace(shown, gradients=wrong)
