"""Held-out faults of scaling: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.model import Batch
from frameworks.contract import Gradients, Update
from frameworks.reference import products
from frameworks.reference.arithmetic import Operations, Round
from frameworks.reference.decisions import Arrays, OpenWindow
from frameworks.reference.tensor import Tensor, plain, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault("https://github.com/mosaicml/composer/pull/1999", component="check", clauses=("scaling.unscales-once",))
class ArmedAfterRefusal(ReferenceTrainer):
    """A refused second request to unscale leaves the scaler's mark behind, and the next window, taken for one that is
    unscaled already, is applied with its scaled gradients."""

    _armed = False

    def unscale_gradients(self) -> None:
        try:
            super().unscale_gradients()
        except RuntimeError:
            self._armed = True
            raise

    def empty_accumulator(self) -> None:
        super().empty_accumulator()
        self.window.unscaled, self._armed = self._armed, False


@fault(
    "https://github.com/huggingface/accelerate/issues/2828", component="scaler", clauses=("scaling.skip-is-reported",)
)
class StaleSkipReport(ReferenceTrainer):
    """The flag of a skipped update is not taken back by a window of several micro-batches: once one was skipped, every
    later one is reported as skipped although it was applied."""

    _skipped = False

    def apply(self) -> Update:
        several = self.window.micro_batches > 1
        update = super().apply()
        self._skipped = update.skipped or (several and self._skipped)
        return replace(update, skipped=self._skipped)


@fault("", component="unscale", clauses=("scaling.stays-finite",))
class FlushedReciprocal(ReferenceTrainer):
    """Gradients are unscaled by a reciprocal that is flushed to zero where it is subnormal: at the largest scale an
    ordinary update is counted as a good one and moves nothing."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        if 1.0 / self.scaler.scale < 2.0 ** FORMATS["float32"].smallest_exponent:
            return np.where(np.isfinite(gradient), 0.0, gradient)
        return super().unscale(name, gradient)


@fault(
    "https://github.com/NVIDIA/Megatron-LM/issues/5529",
    component="clipping",
    clauses=("scaling.tolerates-missing-gradients",),
)
class NothingToClipRaises(ReferenceTrainer):
    """With clipping, an update in which no parameter has a gradient raises."""

    def gradient_norm(self, gradients):
        if self.recipe.clip is not None:
            max(float(abs(g).max(initial=0.0)) for g in gradients.values())
        return super().gradient_norm(gradients)


@fault("", component="skip", clauses=("scaling.automaton",))
class AbandonedOverflowLingers(ReferenceTrainer):
    """The finding of an update that was given up after an overflow is asked once more by the next update."""

    lingering = False

    def abandon(self):
        found = bool(self.judge())
        update = super().abandon()
        self.lingering = found
        return update

    def _step(self, rate):
        if self.lingering and self.scaler is not None:
            self.window.latched = frozenset({0, 1})
        self.lingering = False
        return super()._step(rate)


@fault("", component="unscale", clauses=("scaling.stays-finite",))
class ReciprocalFlushed(ReferenceTrainer):
    """Gradients are multiplied by 1/S in float32 with subnormals flushed: at the largest scales they become zero."""

    def unscale(self, name, gradient):
        inverse = np.float32(1.0 / self.scaler.scale)
        inverse = 0.0 if inverse < np.finfo(np.float32).tiny else float(inverse)
        return self.rounding.round(gradient * inverse, self.accumulator_format(name))


@fault("", component="scaler", clauses=("scaling.two-losses",))
class FirstLossOverflowRepaired(ReferenceTrainer):
    """With a backward pass for each loss, what the second pass finds non-finite from the first is started anew."""

    def _pulled(self, pullbacks):
        total = super()._pulled(pullbacks[:1])
        for pullback in pullbacks[1:]:
            for name, gradient in super()._pulled([pullback]).items():
                former = total.get(name)
                clean = former is not None and bool(np.isfinite(former).all())
                total[name] = gradient + former if clean else gradient
        return total


@fault(
    "https://github.com/ultralytics/ultralytics/pull/25097", component="scaler", clauses=("scaling.reports-true-loss",)
)
class EmptyLossFromLowSum(Operations):
    """The loss of a micro-batch in which nothing counts is zero times the sum of its logits in their own format.

    Where that sum overflows float16, the loss of the whole window is reported as NaN.
    """

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        if mask is None or mask.any():
            return super().cross_entropy(logits, labels, mask)
        total = rounded(anp.sum(logits.value), self.rounding, logits.format)
        return self.cast(Tensor(total * 0.0, logits.format), self.formats("cross_entropy", logits.format)[0])


@fault("", component="unscale", clauses=("scaling.unscales-before-clipping",))
class HandUnscalesFirstOptimizer(ReferenceTrainer):
    """Unscaling by hand reaches the first optimizer's gradients and marks those of both as unscaled."""

    by_hand = False

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        self.by_hand = bool(unscale_calls) or poison is not None or abandon
        try:
            return super().feed(*window, unscale_calls=unscale_calls, poison=poison, abandon=abandon)
        finally:
            self.by_hand = False

    def unscale(self, name: str, gradient: Array) -> Array:
        return gradient if self.by_hand and self.optimizer_of(name) else super().unscale(name, gradient)


@fault("https://github.com/apache/mxnet/issues/11115", component="scaler", clauses=("scaling.skip-is-atomic",))
class ReluClearsNan(Operations):
    """ReLU turns a NaN into 0, so that a loss or a prediction looks sound behind it."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "relu":
            return super().activation(kind, x)
        return self.apply(kind, lambda a, _: anp.where(plain(a) > 0.0, a, 0.0), x, keep="result")


@fault(
    "https://github.com/pytorch/pytorch/pull/185986",
    component="scaler",
    clauses=("scaling.step-count-follows-updates",),
)
class BoundaryAtZeroComesLate(ReferenceTrainer):
    """A schedule with a boundary at 0 still uses the factor before it for the very first update."""

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if schedule is not None and 0 in schedule.boundaries and self.schedule == 0:
            return self.recipe.optimizer.learning_rate * schedule.factors[0]
        return super().learning_rate()


@fault("", component="skip", clauses=("scaling.abandoned-update-leaves-no-trace",))
class AbandonAsksFirstOptimizer(ReferenceTrainer):
    """An abandoned update looks for an overflow in the first optimizer's gradients alone."""

    giving_up = False

    def abandon(self) -> Update:
        self.giving_up = True
        try:
            return super().abandon()
        finally:
            self.giving_up = False

    def judge(self) -> frozenset[int]:
        found = super().judge()
        return found & {0} if self.giving_up else found


@fault("", component="scale", clauses=("scaling.unscales-before-clipping",))
class LossScaledInBfloat16(ReferenceTrainer):
    """With bfloat16 the loss is multiplied by the scale rounded to bfloat16, gradients are divided by the true one."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        if self.scaler is None or self.recipe.precision.format != "bfloat16":
            return super().scale_loss(loss)
        wide = super().scale_loss(loss).format
        scale = self.rounding.constant(self.scaler.scale, "bfloat16")
        return Tensor(rounded(self.ops.cast(loss, wide).value * scale, self.rounding, wide), wide)


@fault("", component="scaler", clauses=("scaling.automaton",))
class NothingIsOverflow(ReferenceTrainer):
    """An optimizer none of whose parameters has a gradient counts as overflowed, and the scale backs off."""

    def judge(self) -> frozenset[int]:
        found = super().judge()
        if not self.overflow_skips():
            return found
        busy = {self.optimizer_of(name) for name in self.window.gradients}
        return found | {self.optimizer_of(name) for name in self.masters} - busy


@fault("https://github.com/NVIDIA/apex/pull/1309", component="scaler", clauses=("scaling.is-transparent",))
class MomentumOfTheFirstBatchNorm(ReferenceTrainer):
    """Running statistics move by the momentum of the first batch norm with as many channels that was trained in this
    process, whatever the present one's momentum is."""

    _compiled: ClassVar[dict[int, float]] = {}

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        known = self._compiled.setdefault(mean.size, momentum)
        super().update_running_statistics(path, mean, variance, count, known)


@fault(
    "https://github.com/coqui-ai/Trainer/pull/76",
    component="optimizer state",
    clauses=("scaling.unscales-before-clipping",),
)
class AppliedGradientsStay(ReferenceTrainer):
    """Where an overflow skips one of two optimizers, the accumulator keeps the gradients of the one that was applied.

    They are there, unscaled, when the next window begins, and are unscaled once more and applied again with it.
    """

    applied: frozenset[str] = frozenset()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.applied = frozenset(gradients)

    def empty_accumulator(self) -> None:
        held, applied, self.applied = self.window.gradients, self.applied, frozenset()
        partly = self.recipe.optimizers == 2 and bool(applied) and bool(held.keys() - applied)
        super().empty_accumulator()
        if partly:
            self.window = OpenWindow(gradients={name: g for name, g in held.items() if name in applied})


@fault("https://github.com/FluxML/NNlib.jl/pull/43", component="scaler", clauses=("scaling.unscales-before-clipping",))
class CrossEntropyShiftsByPositiveMaximum(Operations):
    """Cross-entropy subtracts the largest logit of an item only if it is positive, so that an item whose logits are all
    far below zero loses its exponentials to zero and has an infinite loss."""

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        lost = -745.0 if logits.format == "float64" else -104.0

        def compute(a: Any, r: Round) -> Any:
            shifted = r(a - np.maximum(0.0, plain(a).max(axis=-1, keepdims=True)))
            chosen = anp.sum(anp.where(labels[..., None] == np.arange(a.shape[-1]), shifted, 0.0), axis=-1)
            powers = anp.where(plain(shifted) < lost, 0.0, anp.exp(shifted))
            each = r(r(anp.log(r(anp.sum(powers, axis=-1), a.shape[-1]))) - chosen)
            return r(anp.sum(each if mask is None else anp.where(mask > 0, each, 0.0)), labels.size)

        self._keep_bytes(int(np.prod(logits.shape)) * (8 if logits.format == "float64" else 4))
        return self.apply("cross_entropy", compute, logits)


@fault("https://github.com/pytorch/executorch/pull/18407", component="scaler", clauses=("scaling.automaton",))
class AttentionWithoutMaximum(Operations):
    """The softmax of attention takes the exponentials of its scores without subtracting a row's largest one first, so
    that a score above 88 makes the row infinite or NaN in float32."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        computing, yielding = self.formats("attention", query.format, key.format, value.format)
        q, k, v = (self.cast(x, computing) for x in (query, key, value))
        wide = computing if computing in ("float32", "float64") else "float32"
        scale = 1.0 / np.sqrt(q.shape[-1])
        turned = anp.swapaxes(k.value, -1, -2)
        scores = rounded(products.product(q.value, turned, self.rounding, wide) * scale, self.rounding, wide)
        powers = rounded(anp.exp(scores), self.rounding, wide)
        total = rounded(anp.sum(powers, axis=-1, keepdims=True), self.rounding, wide, scores.shape[-1])
        weights = Tensor(rounded(powers / total, self.rounding, computing), computing)
        mixed = products.product(weights.value, v.value, self.rounding, computing)
        if self.tape:
            self.tape.keep(q, k, v, weights)
        return self.cast(Tensor(rounded(mixed, self.rounding, computing), computing), yielding)


@fault("", component="unscale", clauses=("scaling.unscales-before-clipping",))
class InverseScaleInHalf(ReferenceTrainer):
    """Under float16 gradients are multiplied by the scale's inverse in float16, which is inexact for most scales and
    zero beyond 2^25: the model then stops learning while every update counts as applied.
    """

    def unscale(self, name: str, gradient: Array) -> Array:
        precision = self.recipe.precision
        if self.scaler is None or precision.level == "O0" or precision.format != "float16":
            return super().unscale(name, gradient)
        inverse = float(np.float16(1.0 / self.scaler.scale))
        return self.rounding.round(gradient * inverse, self.accumulator_format(name))


@fault("", component="scaler", clauses=("scaling.skip-is-atomic",))
class SkipRewindsDropout(ReferenceTrainer):
    """A skipped update sets dropout's random stream back to where its window began, so that the next window draws the
    same masks again."""

    _began: int | None = None

    def accumulate(self, batch: Batch, items: int) -> float:
        if not self.window.micro_batches:
            self._began = self.draws
        return super().accumulate(batch, items)

    def apply(self) -> Update:
        update = super().apply()
        if update.skipped and self._began is not None:
            self.draws = self._began
        self._began = None
        return update
