"""Faults of loss scaling, clipping, accumulation and the optimizer's update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.model import Batch
from fixtures.recipe import AdamW
from frameworks.contract import LayerTrace, Update
from frameworks.reference.decisions import Arrays
from frameworks.reference.optimizers import Arithmetic
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/mosaicml/composer/pull/1999", clause="scaling.unscales-once", kind="real")
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


@fault("https://github.com/huggingface/accelerate/issues/2828", clause="scaling.skip-is-reported", kind="real")
class StaleSkipReport(ReferenceTrainer):
    """The flag of a skipped update is not taken back by a window of several micro-batches: once one was skipped, every
    later one is reported as skipped although it was applied."""

    _skipped = False

    def apply(self) -> Update:
        several = self.window.micro_batches > 1
        update = super().apply()
        self._skipped = update.skipped or (several and self._skipped)
        return replace(update, skipped=self._skipped)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/30777", clause="accumulation.clips-only-what-is-larger", kind="real"
)
class ZeroGradientClipsToNan(ReferenceTrainer):
    """Clipping divides by each parameter's own norm, so that a gradient of nothing but zeros comes out as NaN, also in
    a window that is below the bound."""

    def clip(self, gradients: Arrays) -> Arrays:
        clipped = super().clip(gradients)
        if self.recipe.clip is None:
            return clipped
        return {name: g if g.any() else g * math.nan for name, g in clipped.items()}


@fault("https://github.com/pytorch/pytorch/issues/46849", clause="scaling.reports-true-loss", kind="real")
class NormSquaresOverflow(ReferenceTrainer):
    """The squares of the global norm are summed in float32: gradients of 1e20 are finite and have an infinite norm, and
    clipping makes zeros of them."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        norm = super().gradient_norm(gradients)
        return norm if norm * norm <= FORMATS["float32"].largest else math.inf


@fault("https://github.com/KellerJordan/Muon/issues/54", clause="scaling.tolerates-missing-gradients", kind="real")
class DecayWithoutGradient(ReferenceTrainer):
    """AdamW decays the weights of parameters that have no gradient in this update."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if not isinstance(self.recipe.optimizer, AdamW):
            return
        for name in self.masters.keys() - self.window.gradients.keys():
            r = Arithmetic(self.rounding, self.master_formats[name])
            self.masters[name] = r(self.masters[name] * r.number(1.0 - rate * self.recipe.optimizer.weight_decay))


@fault("https://github.com/deepspeedai/DeepSpeed/issues/7640", clause="autocast.float32-parity", kind="real")
class TailOfLargeTensor(ReferenceTrainer):
    """The index of a fused update is too narrow: elements of a parameter beyond the first 2^18 are never updated."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        before = dict(self.masters)
        super().apply_update(gradients, rate)
        for name in gradients:
            if before[name].size > 2**18:
                moved = self.masters[name].copy()
                moved.reshape(-1)[2**18 :] = before[name].reshape(-1)[2**18 :]
                self.masters[name] = moved


@fault("", clause="accumulation.nonfinite-micro-batch", kind="invented")
class LatestMicroBatchJudged(ReferenceTrainer):
    """Overflow is looked for in the parameters that the last micro-batch gave gradients; what an earlier one of the
    window did to the others is applied."""

    _latest: frozenset[str] | None = None

    def take_micro_batch(self, gradients: Arrays) -> None:
        self._latest = frozenset(gradients)
        super().take_micro_batch(gradients)

    def judge(self) -> frozenset[int]:
        whole = self.window.gradients
        seen = whole if self._latest is None else {name: g for name, g in whole.items() if name in self._latest}
        self.window.gradients = seen
        try:
            return super().judge()
        finally:
            self.window.gradients = whole


@fault("", clause="scaling.two-optimizers", kind="invented")
class NormOfBothOptimizers(ReferenceTrainer):
    """Under two optimizers clipping takes the norm of both also where one of them is skipped: an infinity in its
    gradients makes zeros of the other's."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        whole = super().clip(dict(self.window.gradients))
        return {name: whole[name] for name in gradients}


@fault("", clause="accumulation.remainder", kind="invented")
class PartialWindowBound(ReferenceTrainer):
    """A window that is flushed early is clipped to a share of the bound, by how many micro-batches it holds."""

    def clip(self, gradients: Arrays) -> Arrays:
        share = self.window.micro_batches / self.recipe.accumulation
        if self.recipe.clip is None or share >= 1.0:
            return super().clip(gradients)
        whole, self.recipe = self.recipe, self.recipe.but(clip=self.recipe.clip * share)
        try:
            return super().clip(gradients)
        finally:
            self.recipe = whole


@fault("", clause="scaling.stays-finite", kind="invented")
class FlushedReciprocal(ReferenceTrainer):
    """Gradients are unscaled by a reciprocal that is flushed to zero where it is subnormal: at the largest scale an
    ordinary update is counted as a good one and moves nothing."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        if 1.0 / self.scaler.scale < 2.0 ** FORMATS["float32"].smallest_exponent:
            return np.where(np.isfinite(gradient), 0.0, gradient)
        return super().unscale(name, gradient)


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceEndsWindow(ReferenceTrainer):
    """To look at a layer-by-layer trace inside an open window throws away what the window has accumulated."""

    def trace(self, batch: Batch) -> LayerTrace:
        shown = super().trace(batch)
        self.empty_accumulator()
        return shown


@fault("", clause="cost.bytes-repeat", kind="invented")
class CastsPileUp(ReferenceTrainer):
    """At O1 the low-precision copies of the weights that every earlier update was made with are held as well."""

    def saved_bytes(self, batch: Batch) -> int:
        copies = sum(2 * value.size for value in self.values.values()) if self.recipe.precision.level == "O1" else 0
        return super().saved_bytes(batch) + self.steps * copies
