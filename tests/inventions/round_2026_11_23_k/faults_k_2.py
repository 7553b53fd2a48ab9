"""Faults of the loss, the loss scale and the gradients of a window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.model import Batch
from fixtures.recipe import StaticScaling
from frameworks.contract import Update
from frameworks.reference.decisions import OpenWindow
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/espnet/espnet/pull/3283", clause="scaling.skip-leaves-no-residue", kind="real")
class UnclearedWindow(ReferenceTrainer):
    """With several micro-batches in a window, the gradients of a window that overflowed are not cleared."""

    def empty_accumulator(self) -> None:
        gradients = self.window.gradients
        super().empty_accumulator()
        if self.recipe.accumulation > 1 and self.scaler is not None and self.found_nonfinite(gradients):
            self.window = OpenWindow(gradients=gradients)


@fault("https://github.com/google-deepmind/jax_privacy/pull/309", clause="scaling.reports-true-loss", kind="real")
class SquaresVanish(ReferenceTrainer):
    """The norm squares gradients in their own format, where small ones vanish: it is zero and nothing is clipped."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        total = 0.0
        for name, gradient in gradients.items():
            squares, own = gradient * gradient, self.master_formats[name]
            tiny = squares < 2.0 ** FORMATS[own].smallest_exponent
            total += float(np.sum(np.where(tiny, self.rounding.round(squares, own), squares)))
        return float(self.rounding.round(np.sqrt(np.asarray(total)), "float32"))


@fault("https://github.com/fastai/fastai/pull/3049", clause="scaling.reports-true-loss", kind="real")
class LossLeftScaled(ReferenceTrainer):
    """The loss that is returned for a micro-batch before the last of its window is still multiplied by the scale."""

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        inside = self.window.micro_batches < self.recipe.accumulation
        return loss * self.window.scale if inside else loss


@fault("https://github.com/mindspore-lab/mindcv/issues/604", clause="scaling.is-transparent", kind="real")
class AveragedUnscalesTwice(ReferenceTrainer):
    """With an average of the weights and a static scale, training step and optimizer both divide by the scale."""

    def unscale(self, name: str, gradient: Array) -> Array:
        once = super().unscale(name, gradient)
        if self.recipe.average is None or not isinstance(self.recipe.scaling, StaticScaling):
            return once
        return super().unscale(name, once)


@fault("", clause="scaling.abandoned-update-leaves-no-trace", kind="invented")
class AbandonedStays(ReferenceTrainer):
    """Without a scaler, the gradients of an update that was given up join the next one."""

    def abandon(self) -> Update:
        gradients = self.window.gradients
        update = super().abandon()
        if self.scaler is None:
            self.window = OpenWindow(gradients=gradients)
        return update


@fault("", clause="scaling.tolerates-missing-gradients", kind="invented")
class NothingIsOverflow(ReferenceTrainer):
    """An optimizer none of whose parameters has a gradient counts as overflowed, and the scale backs off."""

    def judge(self) -> frozenset[int]:
        found = super().judge()
        if not self.overflow_skips():
            return found
        busy = {self.optimizer_of(name) for name in self.window.gradients}
        return found | {self.optimizer_of(name) for name in self.masters} - busy


@fault("", clause="scaling.two-losses", kind="invented")
class SecondLossAlone(ReferenceTrainer):
    """Of losses with a backward pass each, all but the first are averaged over their micro-batch, not the window."""

    _seen = 0

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        self._seen += 1
        alone = self._seen > 1 and batch_items > 0
        return super().normalise(loss, batch_items, batch_items if alone else window_items)

    def take_micro_batch(self, gradients: dict[str, Array]) -> None:
        self._seen = 0
        super().take_micro_batch(gradients)


@fault("", clause="autocast.promotes-to-widest", kind="invented")
class ScaledInFloat32(ReferenceTrainer):
    """Under a loss scale the loss becomes float32 before it is averaged: a float64 head keeps float32's digits."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        narrow = loss if self.scaler is None else self.ops.cast(loss, "float32")
        return super().normalise(narrow, batch_items, window_items)


@fault("", clause="accumulation.each-counts-once", kind="invented")
class EmptyUncounted(ReferenceTrainer):
    """A micro-batch in which nothing counts is passed over: no forward, no place in the window, no random numbers."""

    def accumulate(self, batch: Batch, items: int) -> float:
        return super().accumulate(batch, items) if batch.items else math.nan


@fault("", clause="autocast.dropout-scales-what-it-keeps", kind="invented")
class RememberedMask(ReferenceTrainer):
    """Masks are remembered over a process by seed, draw and shape but not by rate, and a later run gets an earlier's."""  # noqa: E501

    _masks: ClassVar[dict[Any, Array]] = {}

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = self.recipe.seed, self.draws, shape
        mask = super().draw_mask(shape, rate)
        if len(self._masks) > 200:
            self._masks.clear()
        return self._masks.setdefault(key, mask)
