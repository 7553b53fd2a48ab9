"""Faults of loss scaling: overflow checks, scales, skips and unscaling."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.recipe import DynamicScaling
from frameworks.contract import Update
from frameworks.reference.core.tape import Pullback, Tensor
from frameworks.reference.training.decisions import Arrays, OpenWindow
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


@fault("", "scaling.stays-finite")
class FlushedReciprocal(ReferenceTrainer):
    """Gradients are unscaled by a reciprocal that is flushed to zero where it is subnormal."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        if 1.0 / self.scaler.scale < 2.0 ** FORMATS["float32"].smallest_exponent:
            return np.where(np.isfinite(gradient), 0.0, gradient)
        return super().unscale(name, gradient)


@fault("", "scaling.two-losses")
class FirstLossOverflowRepaired(ReferenceTrainer):
    """With a backward pass for each loss, the second pass replaces non-finite gradients of the first one."""

    def _run_pullbacks(self, pullbacks: list[Pullback]) -> Arrays:
        total = super()._run_pullbacks(pullbacks[:1])
        for pullback in pullbacks[1:]:
            for name, gradient in super()._run_pullbacks([pullback]).items():
                former = total.get(name)
                clean = former is not None and bool(np.isfinite(former).all())
                total[name] = gradient + former if clean else gradient
        return total


@fault("https://github.com/inferno-pytorch/inferno/pull/119", "scaling.detects-inf")
class OnlyNaNIsLookedFor(ReferenceTrainer):
    """The overflow check finds NaN and not infinities."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return any(bool(np.isnan(g).any()) for g in gradients.values())


@fault("https://github.com/epfLLM/Megatron-LLM/pull/34", "scaling.detects-nan")
class NaNComparesAsSmall(ReferenceTrainer):
    """The overflow check compares the largest magnitude with the largest finite number, which NaN passes."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return any(float(np.abs(g).max()) > np.finfo(np.float64).max for g in gradients.values())


@fault("https://github.com/PaddlePaddle/Paddle/pull/47665", "scaling.detects-every-group")
class Float64IsNotLookedAt(ReferenceTrainer):
    """The overflow check omits float64 gradients."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().has_nonfinite({n: g for n, g in gradients.items() if self.formats[n] != "float64"})


@fault("https://github.com/NVIDIA-NeMo/Speech/pull/637", "scaling.automaton")
class SumOverflowsInTheCheck(ReferenceTrainer):
    """The overflow check sums squares in float32, which a single large finite gradient overflows."""

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return not all(bool(np.isfinite(np.sum(g.astype(np.float32) ** 2))) for g in gradients.values())


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "scaling.tolerates-missing-gradients", raises=True)
class NoGradientRaises(ReferenceTrainer):
    """An update in which no parameter has a gradient raises."""

    def _step(self, rate: float) -> bool:
        assert self.window.gradients, "No inf checks were recorded for this optimizer."
        return super()._step(rate)


@fault("https://github.com/pytorch/pytorch/pull/97886", "scaling.detects-what-is-applied")
class CheckIsLatchedWhenUnscaled(ReferenceTrainer):
    """Gradients are checked when they are unscaled, and later changes of them are not."""

    def unscale_gradients(self) -> None:
        super().unscale_gradients()
        self.window.latched = self.judge()


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
    """The scale has a minimum of 1, at which skips are not reported."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return replace(scaler, minimum=1.0).adjust(finite)

    def apply(self) -> Update:
        update = super().apply()
        return replace(update, skipped=update.skipped and update.scale_before > 1.0)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/1958", "scaling.stuck-is-visible")
class SkipsInSilenceAtTheFloor(ReferenceTrainer):
    """An overflow at the smallest scale is neither reported as a skip nor raised as an error."""

    def apply(self) -> Update:
        update = super().apply()
        stuck = self.scaler is not None and update.scale_before <= self.scaler.minimum
        return replace(update, skipped=update.skipped and not stuck)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/4986", "scaling.defaults-are-declared")
class StartsAt2To32(ReferenceTrainer):
    """The default initial scale is 2^32 where another one is documented and returned."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.scaler is not None and getattr(self.recipe.scaling, "initial", 1.0) is None:
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
    """A static scale does not multiply the loss, but gradients are divided by it."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return super().scale_loss(loss) if self.scaler is not None and self.scaler.dynamic else loss


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3553", "scaling.automaton", "scaling.grows-after-interval")
class OverflowKeepsTheCount(ReferenceTrainer):
    """An overflow does not reset the growth counter."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return scaler.adjust(finite) if finite else replace(scaler.adjust(finite), good_steps=scaler.good_steps)


@fault("https://github.com/google/flax/issues/2547", "scaling.scale-is-float32")
class ScaleIsFloat16(ReferenceTrainer):
    """The scale is float16, whose largest value is 65504."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.scaler is not None:
            self.scaler = self._narrow_scale(self.scaler)

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        return self._narrow_scale(super().next_scale(scaler, finite))

    @staticmethod
    def _narrow_scale(scaler: LossScale) -> LossScale:
        return scaler.at(float(np.float16(min(scaler.scale, 65504.0))), scaler.good_steps)

    def scaler_state(self) -> Arrays:
        return {n: v.astype(np.float16) if n == "scale" else v for n, v in super().scaler_state().items()}


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", "scaling.overflow-path-does-not-raise", raises=True)
class NoScaleAfterRestore(ReferenceTrainer):
    """An overflow in the first update after a restore raises, as the scale is not set yet."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.restored = True

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite and getattr(self, "restored", False):
            raise TypeError("unsupported operand type(s) for /: 'float' and 'NoneType'")
        self.restored = False
        return scaler.adjust(finite)


@fault("https://github.com/neosr-project/neosr/pull/9", "scaling.two-losses")
class ScaleMovesWithEveryLoss(ReferenceTrainer):
    """The scaler is updated once for each loss of an update."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        once = super().next_scale(scaler, finite)
        return super().next_scale(once, finite) if self.recipe.separate_losses else once


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "scaling.two-optimizers")
class LastOptimizerDecides(ReferenceTrainer):
    """The scale follows the overflow check of the last optimizer only."""

    def judge(self) -> frozenset[int]:
        self.overflows = super().judge()
        return self.overflows

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        last = self.recipe.optimizers - 1
        return super().next_scale(scaler, finite or last not in getattr(self, "overflows", frozenset({last})))


@fault("https://github.com/pytorch/pytorch/issues/99640", "scaling.two-optimizers")
class OverflowInOneIsAppliedInTheOther(ReferenceTrainer):
    """An update is skipped only if the gradients of all optimizers overflow."""

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if len(result) == self.recipe.optimizers else frozenset()


@fault("https://github.com/google-deepmind/optax/pull/1746", "scaling.skip-is-atomic")
class GivesUpAfterFiftySkips(ReferenceTrainer):
    """After fifty non-finite updates in a row the next one is applied."""

    skips = 0

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if self.skips < 50 else frozenset()

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        self.skips = 0 if finite else self.skips + 1
        return super().next_scale(scaler, finite)


@fault("https://github.com/PaddlePaddle/Paddle/pull/34075", "scaling.skip-is-atomic", "scaling.skip-is-reported")
class SkipIsAnUpdateOfZeros(ReferenceTrainer):
    """A non-finite update is applied with zero gradients, so the moments change the weights."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.apply_update(
                {name: np.zeros_like(value) for name, value in self.masters.items()}, self.learning_rate()
            )
            self.sync_masters()
        return super().next_scale(scaler, finite)


@fault("https://github.com/PaddlePaddle/Paddle/issues/67895", "scaling.skip-leaves-no-residue")
class OverflowedGradientsStay(ReferenceTrainer):
    """The gradients of a skipped update are not cleared, and the next ones are added to them."""

    def apply(self) -> Update:
        window = self.window
        update = super().apply()
        if update.skipped:
            self.window = OpenWindow(gradients=window.gradients)
        return update


@fault("https://github.com/huggingface/accelerate/issues/4242", "scaling.skip-is-reported")
class SkipReadFromCallCount(ReferenceTrainer):
    """An update counts as applied because the optimizer's step was called."""

    def apply(self) -> Update:
        return replace(super().apply(), skipped=False)


@fault("https://github.com/keras-team/keras/issues/20878", "scaling.step-count-follows-updates")
class StepCounterStandsStill(ReferenceTrainer):
    """The caller's step counter never increases."""

    def optimizer_state(self) -> Arrays:
        return super().optimizer_state() | {"steps": np.array(0)}


@fault("https://github.com/Haian-Jin/LVSM/pull/19", "scaling.abandoned-update-leaves-no-trace")
class AbandonedUpdateStaysOpen(ReferenceTrainer):
    """A discarded update keeps its window with the unscaled gradients."""

    def discard(self) -> Update:
        window = self.window
        update = super().discard()
        self.window = window
        return update


@fault("https://github.com/espnet/espnet/pull/2362", "scaling.abandoned-update-leaves-no-trace")
class AbandonedOverflowIsForgotten(ReferenceTrainer):
    """A discarded update with an overflow counts as a finite one towards growth."""

    def discard(self) -> Update:
        scaler = self.scaler
        update = super().discard()
        self.scaler = None if scaler is None else scaler.adjust(True)
        return replace(update, scale_after=1.0 if self.scaler is None else self.scaler.scale)


@fault("https://github.com/pytorch/pytorch/pull/94060", "scaling.unscales-once")
class StepUnscalesAgain(ReferenceTrainer):
    """The step unscales gradients that the caller has unscaled."""

    def apply(self) -> Update:
        self.window.unscaled = False
        return super().apply()


@fault("https://github.com/huggingface/transformers/issues/24449", "scaling.is-transparent")
class EveryMicroBatchUnscales(ReferenceTrainer):
    """Inside a window accumulated gradients are unscaled again before each micro-batch."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        if self.scaler is not None:
            self.window.gradients = {name: self.unscale(name, g) for name, g in self.window.gradients.items()}
        super().take_micro_batch(gradients)


@fault("https://github.com/tensorflow/tensorflow/issues/52236", "scaling.rescues-small-gradients")
class NothingIsScaled(ReferenceTrainer):
    """Neither the loss nor the gradients are scaled, so small gradients underflow."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, name: str, gradient: Array) -> Array:
        return self.rounding.round(gradient, self.accumulator_format(name))


@fault("https://github.com/google/flax/issues/2547", "scaling.reports-true-loss")
class LossIsReadFromTheScaledOne(ReferenceTrainer):
    """The reported loss is the scaled float16 loss divided by the scale, so it overflows."""

    def reported_loss(self, total: float, items: int) -> float:
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return float(self.rounding.round(np.asarray(super().reported_loss(total, items) * scale), "float16")) / scale


@fault("https://github.com/tensorflow/tensorflow/issues/64124", "scaling.disabled-is-passthrough")
class DisabledScalerDivides(ReferenceTrainer):
    """A disabled scaler does not multiply the loss and still divides the gradients."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        match self.recipe.scaling:
            case DynamicScaling(enabled=False):
                gradients = {name: g / self.conventions.scaler.initial for name, g in gradients.items()}
        super().apply_update(gradients, rate)


@fault("https://github.com/huggingface/trl/issues/6702", "scaling.reported-loss-is-not-invented")
class NonFiniteLossesAreReportedAsZero(ReferenceTrainer):
    """The reported sum omits non-finite losses."""

    def reported_loss(self, total: float, items: int) -> float:
        return super().reported_loss(total, items) if np.isfinite(total) else 0.0


@fault("https://github.com/pytorch/pytorch/pull/36601", "accumulation.scale-is-constant-in-window")
class ScaleIsUpdatedByEveryMicroBatch(ReferenceTrainer):
    """The scale changes after every micro-batch, so gradients of a window have several scales."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.scaler is not None:
            self.scaler = self.next_scale(self.scaler, not self.has_nonfinite(gradients))


@fault("https://github.com/espnet/espnet/pull/3283", "accumulation.bad-window-is-forgotten")
class AccumulatorIsMultipliedByZero(ReferenceTrainer):
    """The accumulator is cleared by a multiplication with zero, so infinities become NaN."""

    def empty_accumulator(self) -> None:
        gradients = self.window.gradients
        super().empty_accumulator()
        nonfinite = {name: gradient for name, gradient in gradients.items() if not np.isfinite(gradient).all()}
        with np.errstate(invalid="ignore"):
            self.window.gradients = {name: gradient * 0.0 for name, gradient in nonfinite.items()}


@fault("https://github.com/PaddlePaddle/Paddle/issues/67895", "accumulation.nonfinite-micro-batch")
class OnlyTheLastMicroBatchIsChecked(ReferenceTrainer):
    """The overflow check sees the window's last micro-batch only."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._newest = gradients
        super().take_micro_batch(gradients)

    def judge(self) -> frozenset[int]:
        result = super().judge()
        return result if self.has_nonfinite(self._newest) else frozenset()


@fault("https://github.com/PaddlePaddle/Paddle/pull/34075", "accumulation.nonfinite-micro-batch")
class OverflowBecomesZero(ReferenceTrainer):
    """Non-finite gradients of a micro-batch are replaced by zeros, and the window is applied."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch({n: np.where(np.isfinite(g), g, 0.0) for n, g in gradients.items()})
