"""Faults of the scaler, clipping, the update, the average and what is reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Update
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]
LOW = ("float16", "bfloat16")


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8325", clause="scaling.automaton", kind="real")
class OverflowOfTheCheckItself(ReferenceTrainer):
    """Overflow is told from the float32 sum of a gradient: finite values whose sum is too large skip the update."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        with np.errstate(all="ignore"):
            sums = [np.asarray(g).astype(np.float32).sum(dtype=np.float32) for g in gradients.values()]
        return not all(bool(np.isfinite(total)) for total in sums)


@fault("https://github.com/facebookresearch/fairchem/pull/617", clause="scaling.reports-true-loss", kind="real")
class LossByTheNextScale(ReferenceTrainer):
    """The scaled loss of an update is divided by the scale after it: wrong by the factor by which the scale moved."""

    def apply(self) -> Update:
        update = super().apply()
        return replace(update, loss=update.loss * (update.scale_before / update.scale_after))


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/3212", clause="scaling.tolerates-missing-gradients", kind="real"
)
class LastLaunchIsLost(ReferenceTrainer):
    """Parameters are updated in launches of four, the last of which the last parameter starts: where that one has no
    gradient, those that wait for the launch are not updated."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if next(reversed(self.masters)) not in gradients:
            whole = len(gradients) // 4 * 4
            gradients = dict(list(gradients.items())[:whole])
        super().apply_update(gradients, rate)


@fault("https://github.com/facebookresearch/fairscale/issues/1092", clause="scaling.reports-true-loss", kind="real")
class PartialNormsInLowPrecision(ReferenceTrainer):
    """The norm of each low-precision parameter's gradient is rounded to the parameter's format before it is added."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        squares = 0.0
        for name, gradient in gradients.items():
            square = float(np.vdot(gradient, gradient))
            if self.formats[name] in LOW:
                square = float(self.rounding.round(np.sqrt(np.asarray(square)), self.formats[name])) ** 2
            squares += square
        return float(self.rounding.round(np.sqrt(np.asarray(squares)), "float32"))


@fault("", clause="scaling.abandoned-update-leaves-no-trace", kind="invented")
class VerdictOutlivesTheUpdate(ReferenceTrainer):
    """An overflow that was found in an update which the caller gave up on skips the update after it too."""

    def abandon(self) -> Update:
        verdict = self.judge()
        update = super().abandon()
        if verdict:
            self.window.latched = verdict
        return update


@fault("", clause="scaling.two-optimizers", kind="invented")
class SkippedGradientsAreClippedBy(ReferenceTrainer):
    """The clip coefficient comes from all gradients, those of an optimizer that an overflow skips among them."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        norm = self.gradient_norm(self.window.gradients) + self.conventions.clip_epsilon
        if norm <= self.recipe.clip:
            return gradients
        factor = self.clip_factor(self.recipe.clip / norm, gradients)
        return {name: self.rounding.round(g * factor, self.accumulator_format(name)) for name, g in gradients.items()}


@fault("", clause="scaling.detects-inf", kind="invented")
class FirstBlockIsChecked(ReferenceTrainer):
    """The check for overflow reads the first 65,536 values of a gradient and leaves the rest of a larger one out."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().found_nonfinite({name: np.asarray(g).reshape(-1)[: 2**16] for name, g in gradients.items()})


@fault("", clause="scaling.step-count-follows-updates", kind="invented")
class RateOfZeroIsNoUpdate(ReferenceTrainer):
    """Under a learning rate of exactly zero the optimizer returns at once: moments and counters stay behind."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        if rate != 0.0:
            super().apply_update(gradients, rate)


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageOfWideWeightsIsNarrow(ReferenceTrainer):
    """The average of the weights is one float32 buffer, into which float64 weights are rounded."""

    def average_format(self, name: str) -> str:
        del name
        return "float32"


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageBetweenGroups(ReferenceTrainer):
    """With two groups the average is moved after the first group's step: the second group's weights come in late."""

    before: Arrays = {}  # noqa: RUF012

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.before = dict(self.masters)
        super().apply_update(gradients, rate)

    def move_average(self) -> None:
        after = self.masters
        if self.recipe.groups == 2:
            self.masters = {n: self.before[n] if self._places[n] % 2 else value for n, value in after.items()}
        super().move_average()
        self.masters = after


@fault("", clause="accumulation.weighs-items", kind="invented")
class EmptyMicroBatchSpoilsTheLoss(ReferenceTrainer):
    """A window's loss is the weighted mean of its micro-batches' losses: NaN, times zero, where one has no items."""

    def apply(self) -> Update:
        counts = [count for _, count in self.window.losses]
        update = super().apply()
        return replace(update, loss=math.nan) if 0 in counts else update
