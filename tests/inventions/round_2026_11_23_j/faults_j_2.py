"""Faults in scaling, clipping, the update and what is reported of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import Adam, AdamW
from frameworks.contract import Update
from frameworks.reference.decisions import Arrays
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor
from frameworks.reference.trace import TracedTensors
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/huggingface/trl/issues/6702", clause="scaling.reports-true-loss", kind="real")
class BadLossLooksLikeTheLast(ReferenceTrainer):
    """A loss that is not finite is reported as the mean of the finite ones before it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._finite: list[float] = []

    def reported_loss(self, total: float, items: int) -> float:
        loss = super().reported_loss(total, items)
        if not items:
            return loss
        if math.isfinite(loss):
            self._finite.append(loss)
            return loss
        return sum(self._finite) / max(len(self._finite), 1)


@fault("https://github.com/ray-project/ray/pull/45055", clause="scaling.reports-true-loss", kind="real")
class NormThatOverflowsIsReplaced(ReferenceTrainer):
    """A sum of squares beyond float32 counts as a norm of 1e9, and a norm that is NaN as 0."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        squares = sum(float(np.vdot(g, g)) for g in gradients.values())
        if math.isnan(squares):
            return 0.0
        return 1e9 if squares > float(np.finfo(np.float32).max) else super().gradient_norm(gradients)


@fault("https://github.com/NVIDIA-NeMo/RL/pull/1426", clause="scaling.reports-true-loss", kind="real")
class NormIsAddedUpOverMicroBatches(ReferenceTrainer):
    """The gradient norm that is reported is the true one times the number of micro-batches."""

    def apply(self) -> Update:
        count = self.window.micro_batches
        update = super().apply()
        norm = update.gradient_norm
        return update if norm is None else replace(update, gradient_norm=norm * count)


@fault(
    "https://github.com/unslothai/unsloth-zoo/issues/662", clause="accumulation.clips-only-what-is-larger", kind="real"
)
class ElementsAreBoundedToo(ReferenceTrainer):
    """Where clipping by the norm is asked for, elements are cut off at 5 first."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        return super().clip({name: np.clip(g, -5.0, 5.0) for name, g in gradients.items()})


@fault("https://github.com/pytorch/pytorch/issues/20486", clause="accumulation.once-per-window", kind="real")
class BoundaryActsTwice(ReferenceTrainer):
    """The update at a boundary of the schedule changes the rate twice over; the one after it has the right rate."""

    def learning_rate(self) -> float:
        rate, schedule = super().learning_rate(), self.recipe.schedule
        if schedule is None or self.schedule not in schedule.boundaries:
            return rate
        place = schedule.boundaries.index(self.schedule)
        before, after = schedule.factors[place : place + 2]
        return rate * (after / before) if before else rate


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/7792",
    clause="scaling.tolerates-missing-gradients",
    kind="real",
)
class FirstUpdateNeedsBothOptimizers(ReferenceTrainer):
    """Under a scaler, the first update of two optimizers raises where one of them has no gradient."""

    def judge(self) -> frozenset[int]:
        if self.steps == 0 and self.window.gradients:
            owners = {self.optimizer_of(name) for name in self.masters}
            if owners - {self.optimizer_of(name) for name in self.window.gradients}:
                raise AssertionError("an optimizer was stepped whose gradients were never looked at")
        return super().judge()


@fault("", clause="scaling.grows-after-interval", kind="invented")
class GoodStepsAreOneByte(ReferenceTrainer):
    """The growth counter is one byte wide: it begins again after 255, and no longer interval is ever reached."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        return moved.at(moved.scale, moved.good_steps % 256)


@fault("", clause="scaling.detects-inf", kind="invented")
class ScaleOfOneIsNoScale(ReferenceTrainer):
    """A dynamic scale that stands at 1 is taken for no scaling, so that overflow is not looked for."""

    def judge(self) -> frozenset[int]:
        if self.scaler is not None and self.scaler.dynamic and self.scaler.scale == 1.0:
            return frozenset()
        return super().judge()


@fault("", clause="scaling.two-optimizers", kind="invented")
class SkippedShareIsInTheNorm(ReferenceTrainer):
    """Of two optimizers, one that is skipped for an overflow still counts in the norm that the other is clipped by."""

    def clip(self, gradients: Arrays) -> Arrays:
        whole = super().clip(dict(self.window.gradients))
        return {name: whole[name] for name in gradients}


@fault("", clause="master.decay-survives", kind="invented")
class SingleElementsDoNotDecay(ReferenceTrainer):
    """AdamW leaves parameters of one element without weight decay."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        recipe, steps = self.recipe, self.steps
        single = {name: g for name, g in gradients.items() if g.size == 1}
        if not single or not isinstance(recipe.optimizer, AdamW):
            super().apply_update(gradients, rate)
            return
        super().apply_update({name: g for name, g in gradients.items() if name not in single}, rate)
        self.steps = steps
        o = recipe.optimizer
        self.recipe = recipe.but(optimizer=Adam(o.learning_rate, o.beta1, o.beta2, o.epsilon))
        try:
            super().apply_update(single, rate)
        finally:
            self.recipe = recipe


@fault("", clause="accumulation.evaluation-changes-nothing", kind="invented")
class FailedEvaluationLeavesTheAverage(ReferenceTrainer):
    """Evaluation with the average puts it in the weights' place, and leaves it there if the forward pass raises."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            return super().predict_averaged(inputs)
        kept, self.values = self.values, {name: self.averaged(name) for name in self.averages}
        outputs = self.predict(inputs)
        self.values = kept
        return outputs


@fault("", clause="scaling.reports-true-loss", kind="invented")
class LookingAddsToTheLosses(ReferenceTrainer):
    """Gradients that are asked for inside an open window leave their losses among those of its update."""

    _noted: list[tuple[float, int]] | None = None

    def accumulate(self, batch: Batch, items: int) -> float:
        mean = super().accumulate(batch, items)
        if self._noted is not None:
            self._noted.append(self.window.losses[-1])
        return mean

    def gradients(self, window: Window) -> Arrays:
        self._noted = noted = []
        try:
            found = super().gradients(window)
        finally:
            self._noted = None
        if self.window.micro_batches:
            self.window.losses += noted
        return found


class _Latest(TracedTensors):
    """Keeps the gradient that came last."""

    def take_gradient(self, path: str, gradient: Array) -> None:
        self.gradients[path] = gradient


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceShowsTheLastLoss(ReferenceTrainer):
    """Of two losses with a backward pass each, a trace shows the second one's gradients for the layers they share."""

    def passing(self, path: str, output: Tensor) -> Tensor:
        if self.shown is not None and not isinstance(self.shown, _Latest):
            self.shown.__class__ = _Latest
        return super().passing(path, output)
