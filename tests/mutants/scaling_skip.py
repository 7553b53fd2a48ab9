"""Faults of the check for overflow, of the skipped update, and of what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import FLOAT16
from frameworks.contract import Update
from frameworks.reference import scope
from frameworks.reference.decisions import Arrays, OpenWindow
from frameworks.reference.scaler import LossScale
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault


@fault(
    "https://github.com/inferno-pytorch/inferno/pull/119",
    component="check",
    clauses=("scaling.detects-inf",),
)
class OnlyNaNIsLookedFor(ReferenceTrainer):
    """Gradients are searched for NaN, not for infinities."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return any(bool(np.isnan(g).any()) for g in gradients.values())


@fault(
    "https://github.com/epfLLM/Megatron-LLM/pull/34",
    component="check",
    clauses=("scaling.detects-nan",),
)
class NaNComparesAsSmall(ReferenceTrainer):
    """The largest magnitude is compared with the largest finite number, and NaN is not above it."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return any(float(np.abs(g).max()) > np.finfo(np.float64).max for g in gradients.values())


@fault(
    "https://github.com/facebookresearch/fairscale/pull/890",
    component="check",
    clauses=("scaling.detects-every-group", "scaling.detects-inf", "scaling.detects-nan"),
)
class OnlyTheFirstTensorIsLookedAt(ReferenceTrainer):
    """The check ends after the first gradient."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().found_nonfinite(dict(list(gradients.items())[:1]))


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/47665",
    component="check",
    clauses=("scaling.detects-every-group",),
)
class Float64IsNotLookedAt(ReferenceTrainer):
    """The check collects gradients of float32 and narrower formats only."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().found_nonfinite({n: g for n, g in gradients.items() if self.formats[n] != "float64"})


@fault(
    "https://github.com/NVIDIA-NeMo/Speech/pull/637",
    component="check",
    clauses=("scaling.automaton",),
)
class SumOverflowsInTheCheck(ReferenceTrainer):
    """The sum of squares is checked in float32, which large finite gradients overflow."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return not all(bool(np.isfinite(np.sum(g.astype(np.float32) ** 2))) for g in gradients.values())


@fault(
    "https://github.com/tensorflow/tensorflow/issues/31956",
    component="check",
    clauses=("scaling.tolerates-missing-gradients",),
)
class MissingGradientIsAnOverflow(ReferenceTrainer):
    """A parameter without a gradient counts as one whose gradient is not finite."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return len(gradients) < len(self.masters) / self.recipe.optimizers or super().found_nonfinite(gradients)


@fault(
    "https://github.com/nerfstudio-project/nerfstudio/pull/1919",
    component="check",
    clauses=("scaling.tolerates-missing-gradients",),
    raises=True,
)
class NoGradientRaises(ReferenceTrainer):
    """An update in which no parameter has a gradient raises: nothing was checked."""

    def _step(self, rate: float) -> bool:
        assert self.window.gradients, "No inf checks were recorded for this optimizer."
        return super()._step(rate)


@fault(
    "https://github.com/pytorch/pytorch/pull/97886",
    component="check",
    clauses=("scaling.detects-what-is-applied",),
)
class CheckIsLatchedWhenUnscaled(ReferenceTrainer):
    """Gradients are checked when they are unscaled; what becomes of them later is applied."""

    def unscale_gradients(self) -> None:
        super().unscale_gradients()
        self.window.latched = self.judge()


@fault(
    "https://github.com/google-deepmind/optax/pull/1746",
    component="skip",
    clauses=("scaling.skip-is-atomic",),
)
class GivesUpAfterFiftySkips(ReferenceTrainer):
    """After fifty non-finite updates in a row the next one is applied."""

    skips = 0

    def judge(self) -> frozenset[int]:
        found = super().judge()
        return found if self.skips < 50 else frozenset()

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        self.skips = 0 if finite else self.skips + 1
        return super().next_scale(scaler, finite)


@fault(
    "https://github.com/pytorch/pytorch/issues/55585",
    component="skip",
    clauses=("scaling.skip-is-atomic", "scaling.step-count-follows-updates"),
)
class ScheduleAdvancesOnSkip(ReferenceTrainer):
    """The learning-rate schedule advances whether the update was applied or not."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.advance_schedule()
        return super().next_scale(scaler, finite)


@fault(
    "https://github.com/huggingface/accelerate/issues/4242",
    component="skip",
    clauses=("scaling.skip-is-atomic", "scaling.step-count-follows-updates"),
)
class SkipCountsInBiasCorrection(ReferenceTrainer):
    """Adam's counters follow the calls of its step, skipped ones included."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.counts = {name: count + 1 for name, count in self.counts.items()}
        return super().next_scale(scaler, finite)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/34075",
    component="skip",
    clauses=("scaling.skip-is-atomic", "scaling.skip-is-reported"),
)
class SkipIsAnUpdateOfZeros(ReferenceTrainer):
    """A non-finite update is made with gradients of zero, so that moments decay and move the weights."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.apply_update(
                {name: np.zeros_like(value) for name, value in self.masters.items()}, self.learning_rate()
            )
            self.sync_masters()
        return super().next_scale(scaler, finite)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="skip",
    clauses=("scaling.skip-is-atomic",),
)
class OverflowLeavesAScopeOpen(ReferenceTrainer):
    """An overflow leaves the process in a precision scope that it was not in before."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            scope.enter(scope.Scope(FLOAT16))
        return super().next_scale(scaler, finite)


@fault(
    "https://github.com/pytorch/pytorch/issues/67590",
    component="skip",
    clauses=("scaling.skip-is-atomic",),
)
class AverageMovesOnSkip(ReferenceTrainer):
    """The moving average takes the weights in once more when the update was skipped."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.move_average()
        return super().next_scale(scaler, finite)


@fault(
    "https://github.com/huggingface/accelerate/issues/4242",
    component="skip",
    clauses=("scaling.skip-is-reported",),
)
class SkipReadFromCallCount(ReferenceTrainer):
    """An update counts as applied because the optimizer's step was called."""

    def apply(self) -> Update:
        return replace(super().apply(), skipped=False)


@fault(
    "https://github.com/keras-team/keras/issues/20878",
    component="skip",
    clauses=("scaling.step-count-follows-updates",),
)
class StepCounterStandsStill(ReferenceTrainer):
    """The counter that a caller can read is never raised."""

    def optimizer_state(self) -> Arrays:
        return super().optimizer_state() | {"steps": np.array(0)}


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/67895",
    component="skip",
    clauses=("scaling.skip-leaves-no-residue",),
)
class OverflowedGradientsStay(ReferenceTrainer):
    """The gradients of a skipped update are not cleared, and the next ones are added to them."""

    def apply(self) -> Update:
        held = self.window
        update = super().apply()
        if update.skipped:
            self.window = OpenWindow(gradients=held.gradients)
        return update


@fault(
    "https://github.com/Haian-Jin/LVSM/pull/19",
    component="skip",
    clauses=("scaling.abandoned-update-leaves-no-trace",),
)
class AbandonedUpdateStaysOpen(ReferenceTrainer):
    """An update that is given up on after unscaling leaves the scaler as if its step were still to come."""

    def abandon(self) -> Update:
        window = self.window
        update = super().abandon()
        self.window = window
        return update


@fault(
    "https://github.com/espnet/espnet/pull/2362",
    component="skip",
    clauses=("scaling.abandoned-update-leaves-no-trace",),
)
class AbandonedOverflowIsForgotten(ReferenceTrainer):
    """An update that is given up on counts as a finite one, so that its overflow can let the scale grow."""

    def abandon(self) -> Update:
        scaler = self.scaler
        update = super().abandon()
        self.scaler = None if scaler is None else scaler.adjust(True)
        return replace(update, scale_after=1.0 if self.scaler is None else self.scaler.scale)


@fault(
    "https://github.com/huggingface/accelerate/issues/439",
    component="scaler",
    clauses=("scaling.two-optimizers",),
)
class ScaleMovesWithEveryOptimizer(ReferenceTrainer):
    """The scaler is updated after each of two optimizers."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        for _ in range(self.recipe.optimizers):
            scaler = super().next_scale(scaler, finite)
        return scaler


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="scaler",
    clauses=("scaling.two-optimizers",),
)
class LastOptimizerDecides(ReferenceTrainer):
    """The scale follows what was found for the last optimizer; an overflow of the first one is overwritten."""

    def judge(self) -> frozenset[int]:
        self.found = super().judge()
        return self.found

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        last = self.recipe.optimizers - 1
        return super().next_scale(scaler, finite or last not in getattr(self, "found", frozenset({last})))


@fault(
    "https://github.com/pytorch/pytorch/issues/99640",
    component="scaler",
    clauses=("scaling.two-optimizers",),
)
class OverflowInOneIsAppliedInTheOther(ReferenceTrainer):
    """Only an overflow of all optimizers skips; that of one alone is applied."""

    def judge(self) -> frozenset[int]:
        found = super().judge()
        return found if len(found) == self.recipe.optimizers else frozenset()
