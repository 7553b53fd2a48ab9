"""Faults of operations and of what a forward pass draws and reads."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.base import over_window
from frameworks.reference import products
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.forward import Moment
from frameworks.reference.tensor import Tensor, plain, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_BLOCK = 64
"""Keys that an attention kernel takes at a time."""
_SMALLEST_EPSILON = 1e-5
_MASKS = 1024
"""Masks that are kept in the process."""


@fault("https://github.com/tensorflow/tensorflow/issues/37768", clause="autocast.float32-parity", kind="real")
class BatchNormEpsilonHasAFloor(Operations):
    """Batch norm computes with an epsilon of at least 1e-5, in training and in evaluation, whatever smaller one the
    layer asks for."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        return super().batch_norm(x, scale, shift, max(epsilon, _SMALLEST_EPSILON), given)


@fault("https://github.com/flashinfer-ai/flashinfer/pull/5090", clause="autocast.float32-parity", kind="real")
class PaddedKeysTakePart(Operations):
    """Attention over more than 64 keys fills them up with zeros to a multiple of 64, and the softmax gives these
    keys, whose scores and values are 0, their share."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = key.shape[-2]
        short = -length % _BLOCK if length > _BLOCK else 0
        return super().attention(query, _filled_up(key, short), _filled_up(value, short))


def _filled_up(x: Tensor, rows: int) -> Tensor:
    """x with so many rows of zeros behind it."""
    if not rows:
        return x
    zeros = np.zeros((*x.shape[:-2], rows, x.shape[-1]))
    return Tensor(anp.concatenate([x.value, zeros], axis=-2), x.format, x.owned)


@fault("https://github.com/pytorch/executorch/pull/18407", clause="autocast.softmax-is-wide", kind="real")
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


@fault("https://github.com/keras-team/keras/pull/15015", clause="autocast.integers-untouched", kind="real")
class LabelsInTheFormatOfLogits(Operations):
    """Cross-entropy casts its labels to the format of the logits and back, so that labels above 256 in bfloat16, or
    above 2048 in float16, name another class or none."""

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        cast = self.rounding.round(labels.astype(np.float64), logits.format).astype(labels.dtype)
        return super().cross_entropy(logits, cast, mask)


@fault("https://github.com/urvashik/knnlm/issues/6", clause="autocast.integers-untouched", kind="real")
class SixteenBitIds(Operations):
    """An embedding reads its ids as signed integers of sixteen bits: ids from 32,768 on become negative, or wrap
    around to small ones, and pick other rows of a large table."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        narrow = plain(ids.value).astype(np.int16).astype(np.int64)
        return super().embedding(Tensor(narrow, ids.format, ids.owned), table)


@fault("https://github.com/NVIDIA/apex/pull/1614", clause="autocast.dropout-scales-what-it-keeps", kind="real")
class EightBitDropoutRate(ReferenceTrainer):
    """Dropout drops by a rate that is cut down to a whole number of 256ths, and still divides what it keeps by one
    minus the rate that was asked for."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, math.floor(rate * 256.0) / 256.0)


@fault("https://github.com/lucidrains/rotary-embedding-torch/issues/11", clause="laws.second-run", kind="real")
class MasksAreKeptWithoutTheirRate(ReferenceTrainer):
    """The process keeps the first 1,024 dropout masks by seed, number of the draw and shape, and not by rate: a later
    run with another rate and the same seed gets the masks of the earlier one."""

    _masks: ClassVar[dict[tuple[int, int, tuple[int, ...]], Array]] = {}

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = (self.recipe.seed, self.draws, tuple(shape))
        drawn = super().draw_mask(shape, rate)
        if key not in self._masks and len(self._masks) < _MASKS:
            self._masks[key] = drawn
        return self._masks.get(key, drawn)


@fault("", clause="recompute.replays-dropout", kind="invented")
class SecondReplayDrawsAnew(ReferenceTrainer):
    """A recomputed segment that is run again a second time in one micro-batch, as for the second of two separate
    losses, draws new dropout masks instead of those of its forward pass."""

    _replayed: tuple[Moment, ...] = ()

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._replayed = ()
        try:
            return super().passed(batch, items)
        finally:
            self._replayed = ()

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is former for former in self._replayed):
            return super().recompute_segment(Moment(self.draws, moment.scope))
        self._replayed = (*self._replayed, moment)
        return super().recompute_segment(moment)


@fault("https://github.com/NVIDIA-NeMo/Automodel/pull/3606", clause="autocast.cast-is-fresh", kind="real")
class EvaluationKeepsWeightsByTheirUpdate(ReferenceTrainer):
    """Evaluation keeps the weights that it used until the number of applied updates changes: after a load of a save
    that has as many updates, it still predicts with the weights from before the load."""

    _kept: tuple[int, dict[str, Tensor]] | None = None

    def predict(self, inputs: Array) -> Arrays:
        if self._kept is None or self._kept[0] != self.steps:
            self._kept = self.steps, self._tensors()
        return self._evaluated(self._kept[1], inputs)


@fault("", clause="accumulation.each-counts-once", kind="invented")
class GradientsOfTheOpenWindowToo(ReferenceTrainer):
    """Gradients that are asked for while a window is open include what that window has gathered so far."""

    def gradients(self, window: Window) -> Arrays:
        outer, scaler = self.window, self.scaler
        self.window = replace(outer, gradients=dict(outer.gradients), losses=list(outer.losses))
        try:
            over_window(window, self.accumulate)
            return self.unscaled_gradients()
        finally:
            self.window, self.scaler = outer, scaler
