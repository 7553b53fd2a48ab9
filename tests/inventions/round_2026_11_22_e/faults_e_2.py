"""Faults of updates: norms and clipping, the loss scale, decay, averages, windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import AdamW
from frameworks.contract import Gradients, Update
from frameworks.reference.scaler import LossScale
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault(
    "https://github.com/facebookresearch/fairseq/issues/4555", clause="scaling.unscales-before-clipping", kind="real"
)
class NormOfScaledGradients(ReferenceTrainer):
    """The squares of the norm are summed in float32 over gradients that still have the scale in them.

    The norm of a large finite gradient is infinite, and clipping makes the update zero.
    """

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        scale = 1.0 if self.scaler is None else self.scaler.scale
        squares = np.asarray(sum(float(np.vdot(g * scale, g * scale)) for g in gradients.values()))
        overflows = bool(np.isinf(self.rounding.round(squares, "float32")))
        return float("inf") if overflows else super().gradient_norm(gradients)


@fault("https://github.com/NVIDIA/Megatron-LM/issues/7338", clause="accumulation.once-per-window", kind="real")
class NormOfFirstFormat(ReferenceTrainer):
    """The global norm is taken over the gradients in the format of the first one: float64 heads are left out of it."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        first = self.accumulator_format(next(iter(gradients))) if gradients else ""
        return super().gradient_norm({n: g for n, g in gradients.items() if self.accumulator_format(n) == first})


@fault("https://github.com/k2-fsa/icefall/pull/1852", clause="scaling.automaton", kind="real")
class FiniteBySum(ReferenceTrainer):
    """A gradient counts as finite if its sum is, in the format that it is applied in.

    A float16 gradient of many large finite values is taken for an overflow.
    """

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        sums = (self.rounding.round(np.asarray(np.sum(g)), self.master_formats[n]) for n, g in gradients.items())
        return not all(bool(np.isfinite(total)) for total in sums)


@fault("https://github.com/tensorflow/addons/issues/844", clause="master.decay-survives", kind="real")
class DecayWithoutSchedule(ReferenceTrainer):
    """AdamW's decay is multiplied by the rate that the run began with, whatever the schedule has made of it."""

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        former, optimizer = self.recipe, self.recipe.optimizer
        if isinstance(optimizer, AdamW) and rate not in (0.0, optimizer.learning_rate):
            decay = optimizer.weight_decay * optimizer.learning_rate / rate
            self.recipe = former.but(optimizer=replace(optimizer, weight_decay=decay))
        try:
            super().apply_update(gradients, rate)
        finally:
            self.recipe = former


@fault("https://github.com/keras-team/keras/pull/17225", clause="master.average-is-evaluated", kind="real")
class ScalerHidesAverage(ReferenceTrainer):
    """What wraps the optimizer for loss scaling does not pass on the average: evaluating with it raises."""

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self.scaler is not None and self.recipe.average is not None:
            raise AttributeError("the loss-scaling optimizer has no average")
        return super().predict_averaged(inputs)


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageOncePerOptimizer(ReferenceTrainer):
    """The average moves when an optimizer has stepped, so that it moves twice an update where there are two."""

    def move_average(self) -> None:
        for _ in range(self.recipe.optimizers):
            super().move_average()


@fault("", clause="master.average-follows-updates", kind="invented")
class SkipUsesUpTheCopy(ReferenceTrainer):
    """Only the first attempt at an update copies the weights into the average.

    If it is skipped for an overflow, the first applied update mixes the initial weights in.
    """

    tried = False

    def apply(self) -> Update:
        update = super().apply()
        self.tried = True
        return update

    def move_average(self) -> None:
        applied = self.steps
        self.steps = max(applied, 2) if self.tried else applied
        super().move_average()
        self.steps = applied


@fault("", clause="master.average-follows-updates", kind="invented")
class Float32AverageOfFloat64(ReferenceTrainer):
    """The average of a float64 head is kept in float32."""

    def average_format(self, name: str) -> str:
        return "float32"


@fault("", clause="scaling.is-transparent", kind="invented")
class HandUnscalesFirstOptimizer(ReferenceTrainer):
    """Unscaling by hand reaches the first optimizer's gradients and marks those of both as unscaled."""

    by_hand = False

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        self.by_hand = bool(unscale_calls) or poison is not None or abandon
        try:
            return super().feed(*window, unscale_calls=unscale_calls, poison=poison, abandon=abandon)
        finally:
            self.by_hand = False

    def unscale(self, name: str, gradient: Array) -> Array:
        return gradient if self.by_hand and self.optimizer_of(name) else super().unscale(name, gradient)


@fault("", clause="scaling.rescues-small-gradients", kind="invented")
class UnscaleFlushesSubnormals(ReferenceTrainer):
    """A float32 gradient that is subnormal without the scale becomes zero when the scale is divided out."""

    def unscale(self, name: str, gradient: Array) -> Array:
        value = super().unscale(name, gradient)
        if self.accumulator_format(name) != "float32":
            return value
        return np.where(np.abs(value) < 2.0**-126, 0.0, value)


@fault("", clause="scaling.automaton", kind="invented")
class CapKeepsCounting(ReferenceTrainer):
    """Where the largest scale holds growth back, the growth counter does not start again and counts on."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        after = super().next_scale(scaler, finite)
        held = finite and scaler.dynamic and after.good_steps == 0 and scaler.scale * scaler.growth > scaler.maximum
        return after.at(after.scale, scaler.good_steps + 1) if held else after


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class EvaluationClearsLosses(ReferenceTrainer):
    """An evaluation inside a window resets the running loss: the window's loss leaves out what came before it."""

    def predict(self, inputs: Array) -> dict[str, Any]:
        outputs = super().predict(inputs)
        self.window.losses.clear()
        return outputs
