"""Faults that were seen in real software: operations, norms, schedules and what a load forgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import SGD
from frameworks.contract import Update
from frameworks.reference.arithmetic import Operations
from frameworks.reference.products import _tiles
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault
from tests.inventions.round_2026_11_23_g.backward import changed


@fault("https://github.com/PaddlePaddle/Paddle/pull/14857", clause="autocast.float32-parity", kind="real")
class GeluDividesByInput(Operations):
    """The derivative of GELU is built from the output divided by the input, which is not a number at an input of 0."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind == "gelu":
            zero = plain(x.value) == 0.0
            x = changed(x, lambda g: np.where(zero, np.nan, g))
        return super().activation(kind, x)


@fault("https://github.com/mni-ml/framework/pull/22", clause="autocast.float32-parity", kind="real")
class PoolFeedsNearlyLargest(Operations):
    """Max-pooling gives its gradient to every value that lies within 0.01 of the largest one of its square."""

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        tiles = _tiles(plain(x.value), size)
        near = tiles >= tiles.max(axis=-1, keepdims=True) - 0.01

        def spread(gradient: Array) -> Array:
            fed = _tiles(gradient, size).sum(axis=-1, keepdims=True) * near
            count, high, wide, channels = fed.shape[:4]
            cut = fed.reshape(count, high, wide, channels, size, size)
            return cut.transpose(0, 1, 4, 2, 5, 3).reshape(gradient.shape)

        return super().max_pool(changed(x, spread), size)


@fault("https://github.com/apache/mxnet/issues/11115", clause="scaling.reports-true-loss", kind="real")
class ReluClearsNan(Operations):
    """ReLU turns a NaN into 0, so that a loss or a prediction looks sound behind it."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "relu":
            return super().activation(kind, x)
        return self.apply(kind, lambda a, _: anp.where(plain(a) > 0.0, a, 0.0), x, keep="result")


@fault("https://github.com/pytorch/pytorch/pull/185986", clause="scaling.step-count-follows-updates", kind="real")
class BoundaryAtZeroComesLate(ReferenceTrainer):
    """A schedule with a boundary at 0 still uses the factor before it for the very first update."""

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if schedule is not None and 0 in schedule.boundaries and self.schedule == 0:
            return self.recipe.optimizer.learning_rate * schedule.factors[0]
        return super().learning_rate()


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/1772", clause="resume.bit-identical", kind="real")
class ScheduleSavedBeforeItMoves(ReferenceTrainer):
    """A checkpoint between two windows holds the schedule's count from before the last update."""

    def save_state(self) -> dict[str, Array]:
        arrays = super().save_state()
        if not self.window.micro_batches and self.schedule:
            arrays["counters"][1] -= 1
        return arrays


@fault("https://github.com/FeRx-NLME/ferx-core/pull/1112", clause="scaling.reports-true-loss", kind="real")
class SquaresLeaveFloat32(ReferenceTrainer):
    """The global norm sums squares in float32: above 1e19 it is infinite, below 1e-23 it is 0, and clipping follows."""

    def gradient_norm(self, gradients: Any) -> float:
        squares = np.asarray(sum(float(np.vdot(g, g)) for g in gradients.values()))
        held = float(self.rounding.round(squares, "float32"))
        return held if held in (0.0, np.inf) else super().gradient_norm(gradients)


@fault("https://github.com/pytorch/torchtitan/pull/4382", clause="resume.save-has-no-side-effects", kind="real")
class EarlySaveCountsAStep(ReferenceTrainer):
    """To save before the first update makes Adam's state by an empty step, which stays counted."""

    def save(self, path: Path) -> None:
        if not self.steps and not isinstance(self.recipe.optimizer, SGD):
            self.counts = dict.fromkeys(self.counts, 1)
        super().save(path)


@fault("https://github.com/NVIDIA/Megatron-LM/issues/6237", clause="resume.bit-identical", kind="real")
class SecondLossAfterLoadIsMixed(ReferenceTrainer):
    """The loss of the second update after a load is averaged with that of the first."""

    waiting = False
    kept: float | None = None

    def restore(self, path: Path) -> None:
        super().restore(path)
        self.waiting, self.kept = True, None

    def apply(self) -> Update:
        update = super().apply()
        if self.waiting:
            self.waiting, self.kept = False, update.loss
        elif self.kept is not None:
            update, self.kept = replace(update, loss=(self.kept + update.loss) / 2.0), None
        return update
