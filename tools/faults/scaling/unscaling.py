"""Faults of scaling the loss and unscaling the gradients: what is multiplied, what is divided, and how often."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import DynamicScaling
from frameworks.contract import Update
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/94060", "scaling.unscales-once")
class StepUnscalesAgain(ReferenceTrainer):
    """The step divides by the scale although the caller has unscaled by hand."""

    def apply(self) -> Update:
        self.window.unscaled = False
        return super().apply()


@fault("https://github.com/huggingface/transformers/issues/24449", "scaling.is-transparent")
class EveryMicroBatchUnscales(ReferenceTrainer):
    """Inside a window, what is accumulated is unscaled once more before a micro-batch is added."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        if self.scaler is not None:
            self.window.gradients = {name: self.unscale(name, g) for name, g in self.window.gradients.items()}
        super().take_micro_batch(gradients)


@fault("https://github.com/keras-team/keras/pull/21233", "scaling.is-transparent")
class NestedScalersDisagree(ReferenceTrainer):
    """The loss is scaled by the outer factor, gradients are divided by the outer and an inner one."""

    def unscale(self, name: str, gradient: Array) -> Array:
        return super().unscale(name, gradient) / 16.0


@fault("https://github.com/tensorflow/tensorflow/issues/52236", "scaling.rescues-small-gradients")
class NothingIsScaled(ReferenceTrainer):
    """Neither loss nor gradients see the scale, so that small gradients underflow."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, name: str, gradient: Array) -> Array:
        return self.rounding.round(gradient, self.accumulator_format(name))


@fault("https://github.com/google/flax/issues/2547", "scaling.reports-true-loss")
class LossIsReadFromTheScaledOne(ReferenceTrainer):
    """The reported loss is the float16 scaled one divided by the scale: 9 at a scale of 65536 is infinite."""

    def reported_loss(self, total: float, items: int) -> float:
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return float(self.rounding.round(np.asarray(super().reported_loss(total, items) * scale), "float16")) / scale


@fault("https://github.com/tensorflow/tensorflow/issues/64124", "scaling.disabled-is-passthrough")
class DisabledScalerDivides(ReferenceTrainer):
    """With scaling disabled the loss is not scaled, but gradients are divided."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        match self.recipe.scaling:
            case DynamicScaling(enabled=False):
                gradients = {name: g / self.conventions.scaler.initial for name, g in gradients.items()}
        super().apply_update(gradients, rate)


@fault("https://github.com/huggingface/trl/issues/6702", "scaling.reported-loss-is-not-invented")
class NonFiniteLossesAreReportedAsZero(ReferenceTrainer):
    """A loss that is infinite or NaN is left out of the reported sum."""

    def reported_loss(self, total: float, items: int) -> float:
        return super().reported_loss(total, items) if np.isfinite(total) else 0.0
