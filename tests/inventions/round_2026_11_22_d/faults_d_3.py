"""Faults of scaling, of windows, of optimizers and schedules, of averages and of evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import SGD
from frameworks.reference.scaler import LossScale
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]


@fault("", clause="scaling.automaton", kind="invented")
class SumStandsForElements(ReferenceTrainer):
    """The check looks at each gradient's sum in the parameter's format, so finite values can count as an overflow."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        sums = (self.rounding.round(np.sum(g), self.formats[name]) for name, g in gradients.items())
        return not all(bool(np.isfinite(total)) for total in sums)


@fault("https://github.com/pytorch/pytorch/pull/26512", clause="autocast.promotes-to-widest", kind="real")
class UnscalesThroughFloat32(ReferenceTrainer):
    """Gradients of float64 heads are taken to float32 where they are checked and unscaled."""

    def unscale(self, name: str, gradient: Array) -> Array:
        return super().unscale(name, self.rounding.round(gradient, "float32"))


@fault("", clause="scaling.detects-every-group", kind="invented")
class SingleElementsAreNotChecked(ReferenceTrainer):
    """Gradients of one element, of which a check by blocks sees no whole block, are left out of the check."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().found_nonfinite({name: g for name, g in gradients.items() if g.size > 1})


@fault("", clause="scaling.grows-after-interval", kind="invented")
class ClippedUpdatesDoNotCount(ReferenceTrainer):
    """An update whose gradient was clipped does not count towards the scale's growth."""

    clipped = False

    def clip(self, gradients: Arrays) -> Arrays:
        result = super().clip(gradients)
        self.clipped = result is not gradients
        return result

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        clipped, self.clipped = self.clipped, False
        return scaler if finite and clipped else super().next_scale(scaler, finite)


@fault("", clause="master.average-follows-updates", kind="invented")
class PartialSkipLeavesAverage(ReferenceTrainer):
    """Where one of two optimizers skips, the average does not take in the weights that the other one moved."""

    partial = False

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.partial = gradients.keys() != self.window.gradients.keys()

    def move_average(self) -> None:
        if not self.partial:
            super().move_average()


@fault(
    "https://github.com/WalkingMeatAxolotl/AnimaLoraStudio/pull/486",
    clause="accumulation.nonfinite-micro-batch",
    kind="real",
)
class NonFiniteClearsTheWindow(ReferenceTrainer):
    """A non-finite micro-batch clears what its window has gathered, and the window is applied with those after it."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        if self.scaler is not None and self.window.gradients and self.found_nonfinite(gradients):
            self.window.micro_batches += 1
            self.window.gradients = {}
            return
        super().take_micro_batch(gradients)


@fault("https://github.com/radixark/miles/pull/2796", clause="accumulation.weighs-items", kind="real")
class MaskedSequencesCountAsOne(ReferenceTrainer):
    """A sequence of which no token counts is taken for one token where the loss is normalised."""

    def accumulate(self, batch: Batch, items: int) -> float:
        lost = 0 if batch.mask is None else int((batch.mask.sum(axis=1) == 0.0).sum())
        return super().accumulate(batch, items + lost)


@fault(
    "https://github.com/Lightning-AI/pytorch-lightning/pull/18710",
    clause="accumulation.evaluation-changes-nothing",
    kind="real",
)
class AveragedEvaluationClearsGradients(ReferenceTrainer):
    """Evaluation with the average inside a window clears the gradients that the window has gathered."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        self.window.gradients = {}
        return super().predict_averaged(inputs)


@fault("", clause="accumulation.weighs-items", kind="invented")
class EmptyMicroBatchStartsAnew(ReferenceTrainer):
    """A micro-batch in which no token counts makes its window forget the micro-batches before it."""

    def accumulate(self, batch: Batch, items: int) -> float:
        if batch.items == 0:
            self.window.gradients = {}
        return super().accumulate(batch, items)


@fault(
    "https://github.com/lessw2020/Ranger-Deep-Learning-Optimizer/pull/9", clause="autocast.float32-parity", kind="real"
)
class StepSizesAreBuffered(ReferenceTrainer):
    """Adam's step sizes are buffered by step number for the whole process, whatever rate another run asks for."""

    buffer: ClassVar[dict[int, tuple[int, float]]] = {}

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if not isinstance(self.recipe.optimizer, SGD):
            step, kept = self.buffer.get(self.steps % 10, (-1, rate))
            rate = kept if step == self.steps else rate
            self.buffer[self.steps % 10] = self.steps, rate
        super().apply_update(gradients, rate)


@fault("https://github.com/pytorch/pytorch/pull/186444", clause="composition.pairs", kind="real")
class ZeroRateGivesNan(ReferenceTrainer):
    """Adam divides by its step size, so at a learning rate of zero a weight without a second moment becomes NaN."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if rate == 0.0 and "second_moment" in self.slots:
            for name in gradients:
                still = self.slots["second_moment"][name] == 0.0
                self.masters[name] = np.where(still, np.nan, self.masters[name])


@fault(
    "https://github.com/speedinghzl/pytorch-segmentation-toolbox/issues/12",
    clause="accumulation.groups-change-nothing",
    kind="real",
)
class ScheduleReachesFirstGroup(ReferenceTrainer):
    """The schedule sets the learning rate of the first parameter group, and the second keeps the base rate."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if self.recipe.groups == 1:
            super().apply_update(gradients, rate)
            return
        second = {name: g for name, g in gradients.items() if self._places[name] % 2}
        super().apply_update({name: g for name, g in gradients.items() if name not in second}, rate)
        super().apply_update(second, self.recipe.optimizer.learning_rate)
        self.steps -= 1


@fault("", clause="master.decay-survives", kind="invented")
class ZeroGradientIsTakenForNone(ReferenceTrainer):
    """A parameter whose gradient is zero throughout is left out of the update, its decay and momentum among it."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update({name: g for name, g in gradients.items() if g.any()}, rate)


@fault("https://github.com/pytorch/pytorch/issues/84053", clause="master.average-is-evaluated", kind="real")
class AverageKeepsFirstStatistics(ReferenceTrainer):
    """Evaluation with the average normalises by the running statistics that the run began with."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        held = self.statistics
        self.statistics = {name: value.astype(np.float64) for name, value in self.model.buffers().items()}
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = held


@fault(
    "https://github.com/aqlaboratory/openfold/pull/90", clause="accumulation.evaluation-changes-nothing", kind="real"
)
class AverageStaysInThePlace(ReferenceTrainer):
    """What evaluation with the average keeps of the weights is no copy, so the run goes on from the average."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self.masters = {n: self.rounding.round(v, self.master_formats[n]) for n, v in self.averages.items()}
        self.sync_masters()
        return outputs


@fault("", clause="master.average-follows-updates", kind="invented")
class OnlyUpdatedWeightsAreAveraged(ReferenceTrainer):
    """The average of a parameter stands still in an update that brings no gradient for it."""

    updated: frozenset[str] = frozenset()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.updated = frozenset(gradients)

    def move_average(self) -> None:
        before = dict(self.averages)
        super().move_average()
        self.averages |= {name: value for name, value in before.items() if name not in self.updated}


@fault("", clause="autocast.evaluation-parity", kind="invented")
class SingleSampleLosesItsAxis(ReferenceTrainer):
    """The evaluation of one sample drops every axis of length one from the outputs."""

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        return {name: value.squeeze() for name, value in outputs.items()} if len(inputs) == 1 else outputs
