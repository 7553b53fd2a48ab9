"""Faults of scaling the loss and unscaling the gradients: what is multiplied, what is divided, and how often."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Conventions, Update
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault(
    "https://github.com/microsoft/Swin-Transformer/issues/311", component="unscale", clauses=("scaling.unscales-once",)
)
class UnscalesAsOftenAsAsked(ReferenceTrainer):
    """Nothing remembers that the gradients are unscaled already."""

    def unscale_gradients(self) -> None:
        self.window.unscaled = False
        super().unscale_gradients()


@fault("https://github.com/pytorch/pytorch/pull/94060", component="unscale", clauses=("scaling.unscales-once",))
class StepUnscalesAgain(ReferenceTrainer):
    """The step divides by the scale although the caller has unscaled by hand."""

    def apply(self) -> Update:
        self.window.unscaled = False
        return super().apply()


@fault(
    "https://github.com/huggingface/transformers/issues/24449", component="unscale", clauses=("scaling.is-transparent",)
)
class EveryMicroBatchUnscales(ReferenceTrainer):
    """Inside a window, what is accumulated is unscaled once more before a micro-batch is added."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        if self.scaler is not None:
            self.window.gradients = {name: self.unscale(name, g) for name, g in self.window.gradients.items()}
        super().take_micro_batch(gradients)


@fault("https://github.com/keras-team/keras/pull/21233", component="unscale", clauses=("scaling.is-transparent",))
class NestedScalersDisagree(ReferenceTrainer):
    """The loss is scaled by the outer factor, gradients are divided by the outer and an inner one."""

    def unscale(self, name: str, gradient: Array) -> Array:
        return super().unscale(name, gradient) / 16.0


@fault("https://github.com/keras-team/keras/issues/19479", component="scale", clauses=("scaling.is-transparent",))
class LossIsNotScaled(ReferenceTrainer):
    """The loss stays as it is, and gradients are divided by the scale all the same."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss


@fault(
    "https://github.com/tensorflow/tensorflow/issues/52236",
    component="scale",
    clauses=("scaling.rescues-small-gradients",),
)
class NothingIsScaled(ReferenceTrainer):
    """Neither loss nor gradients see the scale, so that small gradients underflow."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, name: str, gradient: Array) -> Array:
        return self.rounding.round(gradient, self.accumulator_format(name))


@fault(
    "https://github.com/keras-team/keras/issues/15479",
    component="unscale",
    clauses=("scaling.rescues-small-gradients",),
)
class UnscalesInFloat16(ReferenceTrainer):
    """Gradients are divided by the scale in float16, where they underflow after all."""

    def unscale(self, name: str, gradient: Array) -> Array:
        low = self.recipe.precision.format == "float16"
        unscaled = super().unscale(name, gradient)
        return self.rounding.round(unscaled, "float16") if low else unscaled


@fault(
    "https://github.com/tensorflow/tensorflow/issues/47884",
    component="scale",
    clauses=("scaling.rescues-small-gradients",),
)
class ScalesBehindTheNetwork(ReferenceTrainer):
    """The scale is multiplied to the finished gradients, when those in float16 have underflowed."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss

    def take_micro_batch(self, gradients: Arrays) -> None:
        scale = 1.0 if self.scaler is None else self.scaler.scale
        super().take_micro_batch({name: g * scale for name, g in gradients.items()})


@fault("https://github.com/google/flax/issues/2547", component="scale", clauses=("scaling.reports-true-loss",))
class LossIsReadFromTheScaledOne(ReferenceTrainer):
    """The reported loss is the float16 scaled one divided by the scale: 9 at a scale of 65536 is infinite."""

    def reported_loss(self, total: float, items: int) -> float:
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return float(self.rounding.round(np.asarray(super().reported_loss(total, items) * scale), "float16")) / scale


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="scaler",
    clauses=("scaling.disabled-is-passthrough", "scaling.detects-inf"),
)
class ScalerDisablesItself(ReferenceTrainer):
    """On a CPU the scaler switches itself off and says nothing."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        self.scaler = None


@fault(
    "https://github.com/tensorflow/tensorflow/issues/64124",
    component="scaler",
    clauses=("scaling.disabled-is-passthrough",),
)
class DisabledScalerDivides(ReferenceTrainer):
    """With scaling disabled the loss is not scaled, but gradients are divided."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        match self.recipe.scaling:
            case DynamicScaling(enabled=False):
                gradients = {name: g / self.conventions.scaler.initial for name, g in gradients.items()}
        super().apply_update(gradients, rate)


@fault(
    "https://github.com/huggingface/trl/issues/6702",
    component="scale",
    clauses=("scaling.reported-loss-is-not-invented",),
)
class NonFiniteLossesAreReportedAsZero(ReferenceTrainer):
    """A loss that is infinite or NaN is left out of the reported sum."""

    def reported_loss(self, total: float, items: int) -> float:
        return super().reported_loss(total, items) if np.isfinite(total) else 0.0
