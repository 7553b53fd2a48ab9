"""Faults of the loss scale itself: where it starts, when it grows and falls, and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Conventions, Update
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/98828", "scaling.stays-finite")
class ScaleGrowsToInfinity(ReferenceTrainer):
    """The scale has no largest value."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return replace(scaler, maximum=math.inf).adjust(finite)


@fault("https://github.com/NVIDIA/apex/issues/834", "scaling.stays-positive")
class ScaleFallsToZero(ReferenceTrainer):
    """Every overflow halves the scale, without a floor."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return replace(scaler, minimum=0.0).adjust(finite)


@fault("https://github.com/keras-team/keras/issues/16100", "scaling.automaton", "scaling.stuck-is-visible")
class FloorOfOneInSilence(ReferenceTrainer):
    """The scale does not fall below 1, and a skip at 1 is not reported."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return replace(scaler, minimum=1.0).adjust(finite)

    def apply(self) -> Update:
        update = super().apply()
        return replace(update, skipped=update.skipped and update.scale_before > 1.0)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/1958", "scaling.stuck-is-visible")
class SkipsInSilenceAtTheFloor(ReferenceTrainer):
    """The error of an overflow at the smallest scale is swallowed, and so is the skip."""

    def apply(self) -> Update:
        update = super().apply()
        stuck = self.scaler is not None and update.scale_before <= self.scaler.minimum
        return replace(update, skipped=update.skipped and not stuck)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/4986", "scaling.defaults-are-declared")
class StartsAt2To32(ReferenceTrainer):
    """Without settings the scale begins at 2^32, where another default is documented and read back."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        if self.scaler is not None and getattr(recipe.scaling, "initial", 1.0) is None:
            self.scaler = self.scaler.at(2.0**32, 0)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/138", "scaling.static-is-constant")
class StaticScaleMoves(ReferenceTrainer):
    """A static scale is treated as a dynamic one."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return (
            scaler.adjust(finite)
            if scaler.dynamic
            else replace(scaler, interval=1, growth=2.0, backoff=0.5).adjust(finite)
        )


@fault("https://github.com/PaddlePaddle/Paddle/pull/26240", "scaling.static-is-constant")
class StaticScaleIsDividedByOnly(ReferenceTrainer):
    """A static scale leaves the loss as it is, but gradients are divided by it."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return super().scale_loss(loss) if self.scaler is not None and self.scaler.dynamic else loss


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3553", "scaling.automaton", "scaling.grows-after-interval")
class OverflowKeepsTheCount(ReferenceTrainer):
    """An overflow does not set the growth counter to zero."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return scaler.adjust(finite) if finite else replace(scaler.adjust(finite), good_steps=scaler.good_steps)


@fault("https://github.com/google/flax/issues/2547", "scaling.scale-is-float32")
class ScaleIsFloat16(ReferenceTrainer):
    """The scale is held in float16, whose largest value is 65504."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        if self.scaler is not None:
            self.scaler = self._narrowed(self.scaler)

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return self._narrowed(super().next_scale(scaler, finite))

    @staticmethod
    def _narrowed(scaler: LossScale) -> LossScale:
        return scaler.at(float(np.float16(min(scaler.scale, 65504.0))), scaler.good_steps)

    def scaler_state(self) -> Arrays:
        return {n: v.astype(np.float16) if n == "scale" else v for n, v in super().scaler_state().items()}


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", "scaling.overflow-path-does-not-raise", raises=True)
class NoScaleAfterRestore(ReferenceTrainer):
    """Right after a restore there is no scale to unscale by until a loss has been scaled without overflow."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.restored = True

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite and getattr(self, "restored", False):
            raise TypeError("unsupported operand type(s) for /: 'float' and 'NoneType'")
        self.restored = False
        return scaler.adjust(finite)
