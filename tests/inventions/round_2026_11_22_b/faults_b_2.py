"""Faults of optimizers, averages, scaling and windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar
from unittest.mock import patch

import ml_dtypes
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import SGD
from frameworks.contract import LayerTrace
from frameworks.reference import optimizers
from frameworks.reference.decisions import OpenWindow
from frameworks.reference.scaler import LossScale
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8471", clause="scaling.step-count-follows-updates", kind="real")
class LastParameterCounts(ReferenceTrainer):
    """Adam corrects every parameter by the count of the last one that has a gradient in this update."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        count = self.counts[max(gradients, key=self._places.__getitem__)]
        self.counts |= dict.fromkeys(gradients, count)
        super().apply_update(gradients, rate)


@fault("", clause="autocast.float32-parity", kind="invented")
class CorrectionsOfAnotherRun(ReferenceTrainer):
    """Adam's corrections are kept by step for the whole process, so a later run with other betas gets the first's."""

    kept: ClassVar[dict[tuple[bool, int], float]] = {}

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer, right = self.recipe.optimizer, optimizers._correction
        if isinstance(optimizer, SGD):
            super().apply_update(gradients, rate)
            return

        def correction(beta: float, count: int, *rest: object) -> float:
            return self.kept.setdefault((beta == optimizer.beta1, count), right(beta, count, *rest))

        with patch.object(optimizers, "_correction", correction):
            super().apply_update(gradients, rate)


@fault("", clause="master.average-follows-updates", kind="invented")
class AverageOfTouchedOnly(ReferenceTrainer):
    """An update moves the averages of the parameters that it has a gradient for, and leaves the others behind."""

    touched: frozenset[str] = frozenset()

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self.touched = frozenset(gradients)
        super().apply_update(gradients, rate)

    def move_average(self) -> None:
        before = self.averages.copy()
        super().move_average()
        self.averages |= {name: value for name, value in before.items() if name not in self.touched}


@fault("", clause="scaling.grows-after-interval", kind="invented")
class CounterInBfloat16(ReferenceTrainer):
    """The growth counter is held in bfloat16, which counts no further than 256."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        after = super().next_scale(scaler, finite)
        return replace(after, good_steps=int(ml_dtypes.bfloat16(after.good_steps)))


@fault("", clause="scaling.two-optimizers", kind="invented")
class ClipSeesTheOverflowing(ReferenceTrainer):
    """With two optimizers, what one of them clips by is the norm of both, also when the other one overflows."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        norm = self.gradient_norm(self.window.gradients)
        factor = self.rounding.round(np.asarray(self.recipe.clip / (norm + self.conventions.clip_epsilon)), "float32")
        if factor >= 1.0:
            return gradients
        return {name: self.rounding.round(g * factor, self.accumulator_format(name)) for name, g in gradients.items()}


@fault("", clause="scaling.automaton", kind="invented")
class OverflowBySquares(ReferenceTrainer):
    """Overflow is looked for in a float32 sum of squares, so finite gradients beyond 2e19 are skipped."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        squares = sum(float(np.vdot(g, g)) for g in gradients.values())
        return not np.isfinite(np.float32(squares))


@fault("", clause="scaling.detects-inf", kind="invented")
class FirstChunkChecked(ReferenceTrainer):
    """Of a gradient with more than 65536 elements, the check sees the first 65536."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().found_nonfinite({name: g.reshape(-1)[: 1 << 16] for name, g in gradients.items()})


@fault("https://github.com/apache/mxnet/pull/20338", clause="autocast.settings-restored", kind="real")
class SubnormalsFlushedForGood(ReferenceTrainer):
    """A run in mixed precision has subnormal numbers flushed to zero, in every later run of the process too."""

    flushing: ClassVar[list[bool]] = []

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.recipe.precision.level != "O0":
            self.flushing[:] = [True]
        if self.flushing:
            gradient = np.where(np.abs(gradient) < 2.0**-126, 0.0, gradient)
        super().accumulate_gradient(name, gradient)


@fault("", clause="accumulation.each-counts-once", kind="invented")
class FailureEmptiesWindow(ReferenceTrainer):
    """A micro-batch that raises takes with it what the earlier ones of its window had gathered."""

    def accumulate(self, batch: Batch, items: int) -> float:
        try:
            return super().accumulate(batch, items)
        except Exception:
            self.empty_accumulator()
            raise


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceEndsWindow(ReferenceTrainer):
    """A trace that is asked for inside a window ends the window, and what had been gathered is lost."""

    def trace(self, batch: Batch) -> LayerTrace:
        shown = super().trace(batch)
        self.window = OpenWindow()
        return shown


@fault("", clause="cost.accumulation-bytes", kind="invented")
class EarlierMicroBatchesHeld(ReferenceTrainer):
    """What a micro-batch keeps for backward is not let go before the window ends, so later ones hold that too."""

    def saved_bytes(self, batch: Batch) -> int:
        return super().saved_bytes(batch) * (1 + self.window.micro_batches)
