"""Faults of one loss scaler with several losses or several optimizers."""

from __future__ import annotations

from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/NVIDIA/OpenSeq2Seq/pull/127", component="scale", clauses=("scaling.two-losses",))
class SecondLossIsNotScaled(ReferenceTrainer):
    """Of two losses only the first one is scaled."""

    scaled = 0

    def take_micro_batch(self, gradients: Arrays) -> None:
        self.scaled = 0
        super().take_micro_batch(gradients)

    def scale_loss(self, loss: Tensor) -> Tensor:
        self.scaled += 1
        return super().scale_loss(loss) if self.scaled == 1 else loss


@fault("https://github.com/neosr-project/neosr/pull/9", component="scaler", clauses=("scaling.two-losses",))
class ScaleMovesWithEveryLoss(ReferenceTrainer):
    """The scaler is updated once for each loss of an update."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        once = super().next_scale(scaler, finite)
        return super().next_scale(once, finite) if self.recipe.separate_losses else once


@fault("https://github.com/huggingface/accelerate/issues/439", component="scaler", clauses=("scaling.two-optimizers",))
class ScaleMovesWithEveryOptimizer(ReferenceTrainer):
    """The scaler is updated after each of two optimizers."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        for _ in range(self.recipe.optimizers):
            scaler = super().next_scale(scaler, finite)
        return scaler


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", component="scaler", clauses=("scaling.two-optimizers",))
class LastOptimizerDecides(ReferenceTrainer):
    """The scale follows what was found for the last optimizer; an overflow of the first one is overwritten."""

    def judge(self) -> frozenset[int]:
        self.overflows = super().judge()
        return self.overflows

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        last = self.recipe.optimizers - 1
        return super().next_scale(scaler, finite or last not in getattr(self, "overflows", frozenset({last})))


@fault("https://github.com/pytorch/pytorch/issues/99640", component="scaler", clauses=("scaling.two-optimizers",))
class OverflowInOneIsAppliedInTheOther(ReferenceTrainer):
    """Only an overflow of all optimizers skips; that of one alone is applied."""

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if len(result) == self.recipe.optimizers else frozenset()
