"""Faults of one loss scaler with several losses or several optimizers."""

from __future__ import annotations

from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/neosr-project/neosr/pull/9", "scaling.two-losses")
class ScaleMovesWithEveryLoss(ReferenceTrainer):
    """The scaler is updated once for each loss of an update."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        once = super().next_scale(scaler, finite)
        return super().next_scale(once, finite) if self.recipe.separate_losses else once


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "scaling.two-optimizers")
class LastOptimizerDecides(ReferenceTrainer):
    """The scale follows what was found for the last optimizer; an overflow of the first one is overwritten."""

    def judge(self) -> frozenset[int]:
        self.overflows = super().judge()
        return self.overflows

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        last = self.recipe.optimizers - 1
        return super().next_scale(scaler, finite or last not in getattr(self, "overflows", frozenset({last})))


@fault("https://github.com/pytorch/pytorch/issues/99640", "scaling.two-optimizers")
class OverflowInOneIsAppliedInTheOther(ReferenceTrainer):
    """Only an overflow of all optimizers skips; that of one alone is applied."""

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if len(result) == self.recipe.optimizers else frozenset()
