"""Faults of operations: losses, norms, activations, attention, convolution, embedding, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import isbox

from fixtures.arrays import Array
from frameworks.reference.arithmetic import UNARY, Operations, Round, normalise
from frameworks.reference.tensor import Tensor, plain, rounded
from tests.inventions import fault


def without_gradient(x: Tensor, lost: Array) -> Tensor:
    """x, through which no gradient comes back to the places in `lost`; outside a trace x itself."""
    if not isbox(x.value) or not lost.any():
        return x
    return Tensor(anp.where(lost, plain(x.value), x.value), x.format, x.owned)


@fault("https://github.com/ultralytics/ultralytics/pull/25097", clause="scaling.reports-true-loss", kind="real")
class EmptyLossFromLowSum(Operations):
    """The loss of a micro-batch in which nothing counts is zero times the sum of its logits in their own format.

    Where that sum overflows float16, the loss of the whole window is reported as NaN.
    """

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        if mask is None or mask.any():
            return super().cross_entropy(logits, labels, mask)
        total = rounded(anp.sum(logits.value), self.rounding, logits.format)
        return self.cast(Tensor(total * 0.0, logits.format), self.formats("cross_entropy", logits.format)[0])


@fault("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4660", clause="accumulation.weighs-items", kind="real")
class LastClassTakenForPadding(Operations):
    """Under a mask, positions whose label is the last class are left out of the loss as if they were padding."""

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        if mask is not None:
            mask = np.where(labels == logits.shape[-1] - 1, 0.0, mask)
        return super().cross_entropy(logits, labels, mask)


@fault("https://github.com/tenstorrent/tt-metal/issues/54867", clause="autocast.float32-parity", kind="real")
class GeluSlopeSaturates(Operations):
    """In float32 the slope of gelu is taken to be 1 from 3.1719 on, which holds to bfloat16's precision only."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "gelu" or self.formats("gelu", x.format)[0] != "float32" or not isbox(x.value):
            return super().activation(kind, x)

        def gelu(a: Any, _: Round) -> Any:
            y = UNARY["gelu"](a)
            return anp.where(plain(a) >= 3.1719, a + plain(y - a), y)

        return self.apply("gelu", gelu, x, keep="operands")


@fault("https://github.com/microsoft/onnxruntime/issues/21935", clause="autocast.norm-layers-are-wide", kind="real")
class NegativeVariance(Operations):
    """Layer norm takes the variance for the mean square without the squared mean, both summed one by one in float32.

    It has no bound at zero, so that a row of large and almost equal values gives NaN.
    """

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        rows = plain(x.value).astype(np.float32)
        mean, square = (np.cumsum(v, axis=-1, dtype=np.float32)[..., -1:] / rows.shape[-1] for v in (rows, rows * rows))
        negative = square - mean * mean + np.float32(epsilon) < 0.0
        self._keep_bytes(8 * int(np.prod(x.shape[:-1])))

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            y = r(normalise(a, (-1,), epsilon, r, self.variance)[0]) * g + b
            return anp.where(negative, np.nan, y) if negative.any() else y

        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("https://github.com/flagos-ai/FlagGems/pull/898", clause="autocast.float32-parity", kind="real")
class ValuesOfOddLengths(Operations):
    """Where a sequence's length is no multiple of 8, all heads but the first lose gradients of their first values."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads, length = value.shape[-3], value.shape[-2]
        lost = (np.arange(heads)[:, None] > 0) & (np.arange(length)[None, :] < -length % 8)
        return super().attention(query, key, without_gradient(value, lost[..., None]))


@fault("https://github.com/flagos-ai/FlagGems/pull/1576", clause="autocast.float32-parity", kind="real")
class StrideLeavesRemainder(Operations):
    """Where a convolution's stride does not divide what the kernel passes over, the last row and column of its input
    get no gradient."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        height, width, size = x.shape[1], x.shape[2], weight.shape[0]
        rows = (np.arange(height) == height - 1) & ((height + 2 * padding - size) % stride != 0)
        columns = (np.arange(width) == width - 1) & ((width + 2 * padding - size) % stride != 0)
        lost = (rows[:, None] | columns[None, :])[None, :, :, None]
        return super().convolution(without_gradient(x, lost), weight, bias, stride, padding)


@fault("https://github.com/ibalazevic/TuckER/issues/17", clause="accumulation.repeated-rows", kind="real")
class FirstRowIsPadding(Operations):
    """The first row of every table is treated as padding: it is looked up, and its gradient is zero."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        return super().embedding(ids, without_gradient(table, np.arange(table.shape[0])[:, None] == 0))


@fault("", clause="autocast.softmax-is-wide", kind="invented")
class LongSoftmaxIsLow(Operations):
    """Softmax and log-softmax of more than 1024 columns leave the wide path and compute in their input's format."""

    long = False

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        return (operands[0], operands[0]) if self.long else super().formats(op, *operands)

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        self.long = op in ("softmax", "log_softmax") and operands[0].shape[-1] > 1024
        try:
            return super().apply(op, function, *operands, keep=keep)
        finally:
            self.long = False
