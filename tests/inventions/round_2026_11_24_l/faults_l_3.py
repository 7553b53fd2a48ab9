"""Invented faults of dropout, losses, windows, operations and recomputation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.reference import products
from frameworks.reference.arithmetic import Operations, Round
from frameworks.reference.forward import Moment
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor, plain, rounded
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("", clause="autocast.dropout-scales-what-it-keeps", kind="invented")
class DropoutRateInEightBits(ReferenceTrainer):
    """Dropout drops values with its rate rounded down to a multiple of 1/256, but divides the rest by 1 minus the rate
    itself."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, math.floor(256.0 * rate) / 256.0)


@fault("", clause="accumulation.weighs-items", kind="invented")
class ItemsInFloat16(ReferenceTrainer):
    """At every level of float16 the number of a window's items that losses are divided by is held in float16: it is
    rounded beyond 2,048, and from 65,520 on it is infinite and all gradients are zero."""

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        if self.recipe.precision.format != "float16":
            return super().normalise(loss, batch_items, window_items)
        count = float(self.rounding.round(np.asarray(float(window_items)), "float16"))
        return Tensor(rounded(loss.value / count, self.rounding, loss.format), loss.format)


_IDS = 2**16


@primitive
def _rows(table: Array, ids: Array) -> Array:
    """Rows of a table, of which 16 bits of each id are kept for the backward pass."""
    return table[ids]


def _rows_table(ans: Array, table: Array, ids: Array) -> Callable[[Array], Array]:
    del ans

    def pullback(gradient: Array) -> Array:
        total = np.zeros_like(table)
        np.add.at(total, ids % _IDS, gradient)
        return total

    return pullback


defvjp(_rows, _rows_table, None)


@fault("", clause="autocast.integers-untouched", kind="invented")
class IdsKeptInSixteenBits(Operations):
    """An embedding keeps 16 bits of each id for the backward pass, so that the gradients of rows from 65,536 on reach
    the row whose number is the remainder by 65,536."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        if table.shape[0] <= _IDS:
            return super().embedding(ids, table)
        return self.apply("embedding", lambda i, t, _: _rows(t, i), ids, table)


@fault("", clause="autocast.layers-honour-policy", kind="invented")
class PointwiseConvolutionsStayWide(Operations):
    """A convolution with a kernel of one by one is not among the products that a precision scope runs in its format: at
    level O1 it follows its operands, of which the weights are float32."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        if weight.shape[0] != 1:
            return super().convolution(x, weight, bias, stride, padding)
        return self._product(
            "pointwise_conv2d",
            lambda a, w, b, r, f: products.convolution(a, w, b, stride, padding, r, f),
            x,
            weight,
            bias,
        )


def _softmax_from_zero(x: Any, r: Round) -> Any:
    powers = r(anp.exp(r(x - np.maximum(plain(x).max(axis=-1, keepdims=True), 0.0))))
    return powers / r(anp.sum(powers, axis=-1, keepdims=True), x.shape[-1])


@fault("", clause="autocast.softmax-is-wide", kind="invented")
class SoftmaxMaximumStartsAtZero(Operations):
    """The softmax operation takes off a row's largest logit only where it is above zero, so that in float32 a row whose
    logits all lie below -104 comes out as NaN, and one whose logits all lie below -87 loses digits."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        return super().apply(op, _softmax_from_zero if op == "softmax" else function, *operands, keep=keep)


@fault("", clause="scaling.grows-after-interval", kind="invented")
class ShortWindowsDoNotCount(ReferenceTrainer):
    """A finite window of fewer micro-batches than the recipe accumulates, ended by an update, neither counts towards
    the next growth of the loss scale nor makes it grow."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        whole = self.window.micro_batches >= self.recipe.accumulation
        if finite and not whole and self.conventions.scaler.counts == "updates":
            return scaler
        return super().next_scale(scaler, finite)


@fault("", clause="recompute.replays-dropout", kind="invented")
class SecondRerunDrawsAnew(ReferenceTrainer):
    """Where a second loss has a backward pass of its own, the segments that it recomputes draw new dropout masks and
    move the random stream on."""

    _rerun: tuple[Moment, ...] = ()

    def run(self, parameters: Mapping[str, Tensor], batch: Batch, inputs: Any = None) -> dict[str, Tensor]:
        self._rerun = ()
        return super().run(parameters, batch, inputs)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if not any(known is moment for known in self._rerun):
            self._rerun = (*self._rerun, moment)
            return super().recompute_segment(moment)
        stack = ExitStack()
        stack.enter_context(self.replay_buffers())
        stack.enter_context(self.replay_precision(moment.scope))
        return stack
