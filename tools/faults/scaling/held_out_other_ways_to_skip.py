"""Faults of skipped and empty updates other than the usual one: by hand, without a scaler, with a constant scale."""

from __future__ import annotations

from fixtures.recipe import DynamicScaling, StaticScaling
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", "scaling.backs-off-on-overflow")
class UnscaledByHandBacksOffTwice(ReferenceTrainer):
    """An overflow lowers the scale when the caller unscales the gradients, and again when the update is skipped."""

    by_hand = False

    def unscale_manually(self, calls: int) -> None:
        self.by_hand = calls > 0
        super().unscale_manually(calls)

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        return moved if finite or not self.by_hand else super().next_scale(moved, finite)

    def empty_accumulator(self) -> None:
        super().empty_accumulator()
        self.by_hand = False


@fault("", "scaling.disabled-is-passthrough")
class DisabledScalerSkips(ReferenceTrainer):
    """A disabled scaler still skips an update whose gradients are not finite."""

    def _step(self, rate: float) -> bool:
        disabled = isinstance(self.recipe.scaling, DynamicScaling) and not self.recipe.scaling.enabled
        return (disabled and self.has_nonfinite(self.window.gradients)) or super()._step(rate)


@fault("https://github.com/pytorch/pytorch/issues/55585", "scaling.skip-is-atomic")
class StaticSkipMovesTheSchedule(ReferenceTrainer):
    """A skipped update moves the schedule where the loss scale is constant."""

    def _step(self, rate: float) -> bool:
        skipped = super()._step(rate)
        if skipped and isinstance(self.recipe.scaling, StaticScaling):
            self.advance_schedule()
        return skipped


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "scaling.tolerates-missing-gradients")
class UpdateWithoutGradientsMovesTheSchedule(ReferenceTrainer):
    """An update in which no parameter has a gradient moves the schedule."""

    def _step(self, rate: float) -> bool:
        if not self.window.gradients:
            self.advance_schedule()
        return super()._step(rate)
