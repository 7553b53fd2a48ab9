"""Faults of optimizers that treat a matrix as one: Adafactor's statistics and clipping, Muon's updates and rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import Adafactor, Muon
from frameworks.reference.training.matrix_optimizers import AdafactorRule, MuonRule, Shape
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault
from tools.faults.optimizers.optimizer_options import with_rule


class _EnlargesUpdates(AdafactorRule):
    def clipped(self, update: Array) -> Array:
        return self.r(update / min(1.0, self.rms(update) / self.optimizer.threshold))


@fault(
    "https://github.com/huggingface/pytorch-image-models/pull/2790",
    "optimizer.implementations-agree",
    "optimizer.options",
)
class SmallUpdatesAreEnlarged(ReferenceTrainer):
    """Adafactor divides an update by the smaller of one and its RMS, so that small updates grow and large ones stay."""

    rules = with_rule(Adafactor, _EnlargesUpdates)


class _ForgetsRows(AdafactorRule):
    def root(self, means: Mapping[str, Array]) -> Array:
        rows = means.get("rows", np.ones(1))
        tall = "rows" in means and len(rows) > means["columns"].shape[-1]
        return super().root({**means, "rows": np.ones_like(rows)} if tall else means)


@fault(
    "https://github.com/huggingface/pytorch-image-models/pull/2749",
    "optimizer.implementations-agree",
    "optimizer.options",
)
class RowsOfTallMatricesDoNotCount(ReferenceTrainer):
    """Adafactor's estimate for a matrix with more rows than columns is that of its columns alone."""

    rules = with_rule(Adafactor, _ForgetsRows)


class _KeepsTheRate(MuonRule):
    def factor(self, shape: Shape) -> float:
        return 1.0 if self.optimizer.adjustment == "width" else super().factor(shape)


@fault("https://github.com/google-deepmind/optax/pull/1249", "optimizer.options")
class WidthAdjustsNoRate(ReferenceTrainer):
    """Muon's rate is the same for matrices of every shape, where it is asked to follow the ratio of their sides."""

    rules = with_rule(Muon, _KeepsTheRate)


class _AdjustsTwice(MuonRule):
    def factor(self, shape: Shape) -> float:
        return super().factor(shape) * max(1.0, shape[1] / shape[0]) ** 0.5


@fault(
    "https://github.com/kozistr/pytorch_optimizer/issues/371", "optimizer.implementations-agree", "optimizer.options"
)
class RateIsAdjustedTwice(ReferenceTrainer):
    """Muon's rate follows the ratio of a matrix' sides besides the adjustment that matches AdamW's RMS."""

    rules = with_rule(Muon, _AdjustsTwice)


class _OnlyNormalises(MuonRule):
    def iterated(self, x: Array) -> Array:
        return x


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8442", "optimizer.implementations-agree", "optimizer.options")
class MatricesAreNotOrthogonalised(ReferenceTrainer):
    """Muon divides the velocity by its norm and makes no iteration of Newton and Schulz."""

    rules = with_rule(Muon, _OnlyNormalises)


class _LooksAheadAlways(MuonRule):
    def ahead(self, velocity: Array, g: Array, count: int) -> Array:
        return self.r(g + self.r(self.r.number(self.optimizer.momentum) * velocity))


@fault("https://github.com/zichongli5/NorMuon/issues/5", "optimizer.options")
class PlainMomentumLooksAhead(ReferenceTrainer):
    """Muon's update takes Nesterov's momentum where the plain one is asked for."""

    rules = with_rule(Muon, _LooksAheadAlways)
