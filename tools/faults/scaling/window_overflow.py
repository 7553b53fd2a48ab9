"""Faults of loss scaling inside an accumulation window: a scale that moves, and overflow in one micro-batch."""

from __future__ import annotations

import numpy as np

from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/36601", "accumulation.scale-is-constant-in-window")
class ScaleIsUpdatedByEveryMicroBatch(ReferenceTrainer):
    """The scale is adjusted behind every micro-batch, so that a window's gradients are of several scales."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.scaler is not None:
            self.scaler = self.next_scale(self.scaler, not self.has_nonfinite(gradients))


@fault("https://github.com/espnet/espnet/pull/3283", "accumulation.bad-window-is-forgotten")
class AccumulatorIsMultipliedByZero(ReferenceTrainer):
    """At the end of a window what overflowed in the accumulator is multiplied by zero, which gives NaN."""

    def empty_accumulator(self) -> None:
        gradients = self.window.gradients
        super().empty_accumulator()
        bad = {name: gradient for name, gradient in gradients.items() if not np.isfinite(gradient).all()}
        with np.errstate(invalid="ignore"):
            self.window.gradients = {name: gradient * 0.0 for name, gradient in bad.items()}


@fault("https://github.com/PaddlePaddle/Paddle/issues/67895", "accumulation.nonfinite-micro-batch")
class OnlyTheLastMicroBatchIsChecked(ReferenceTrainer):
    """Overflow is looked for in the window's last micro-batch alone."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._newest = gradients
        super().take_micro_batch(gradients)

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if self.has_nonfinite(self._newest) else frozenset()


@fault("https://github.com/PaddlePaddle/Paddle/pull/34075", "accumulation.nonfinite-micro-batch")
class OverflowBecomesZero(ReferenceTrainer):
    """Non-finite values of a micro-batch are replaced by zeros, and the window is applied without them."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch({n: np.where(np.isfinite(g), g, 0.0) for n, g in gradients.items()})
