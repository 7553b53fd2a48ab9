"""Faults of operations and of the precision scope."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.recipe import Precision
from frameworks.reference import scope
from frameworks.reference.arithmetic import Operations, Round
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.rounding import Rounding
from frameworks.reference.special import erf
from frameworks.reference.tensor import Tensor, plain
from tests.inventions import fault

LOW = ("float16", "bfloat16")


@primitive
def _sigmoid_input(x: Array) -> Array:
    return x


defvjp(_sigmoid_input, lambda _ans, x: lambda g: np.where(x < -88.73, np.nan, g))


@primitive
def _square_image(x: Array) -> Array:
    return x


def _square_only(_ans: Array, x: Array) -> Any:
    def pullback(gradient: Array) -> Array:
        kept = np.array(gradient)
        kept[:, :, x.shape[1] :] = 0.0
        return kept

    return pullback


defvjp(_square_image, _square_only)


@primitive
def _narrow_gradient(x: Array, rounding: Rounding, name: str) -> Array:
    del rounding, name
    return x


defvjp(_narrow_gradient, lambda _ans, _x, rounding, name: lambda g: rounding.round(g, name), None, None)


@primitive
def _rows(ids: Array, table: Array, rounding: Rounding, name: str) -> Array:
    del rounding, name
    return table[ids]


def _rows_table(_ans: Array, ids: Array, table: Array, rounding: Rounding, name: str) -> Any:
    def pullback(gradient: Array) -> Array:
        total = np.zeros_like(table)
        for place, row in zip(ids.reshape(-1), gradient.reshape(-1, table.shape[-1]), strict=True):
            total[place] = rounding.round(total[place] + row, name)
        return total

    return pullback


defvjp(_rows, None, _rows_table, None, None)


@fault("https://github.com/linkedin/Liger-Kernel/pull/519", clause="autocast.float32-parity", kind="real")
class PaddedRowsInTheVariance(Operations):
    """Layer norm pads rows to a power of two with zeros, and the padding's distance to the mean joins the variance."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        width = x.shape[-1]
        padding = (1 << (width - 1).bit_length()) - width
        if not padding:
            return super().layer_norm(x, scale, shift, epsilon)
        self._keep_bytes(8 * int(np.prod(x.shape[:-1])))

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            mean = r(anp.mean(a, axis=-1, keepdims=True), width)
            centred = r(a - mean)
            squares = anp.sum(centred * centred, axis=-1, keepdims=True) + padding * mean * mean
            return r(centred * r(1.0 / anp.sqrt(r(squares / width, width) + epsilon))) * g + b

        return self.apply("layer_norm", compute, x, scale, shift, keep="operands")


@fault("https://github.com/FluxML/NNlib.jl/issues/86", clause="autocast.float32-parity", kind="real")
class EveryTieGetsTheGradient(Operations):
    """Where several values of a pooling square are the largest, each gets the whole gradient."""

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        self._keep_bytes(int(np.prod(x.shape)) // size**2)

        def compute(a: Any, _: Round) -> Any:
            count, height, width, channels = a.shape
            cut = anp.reshape(a, (count, height // size, size, width // size, size, channels))
            values = plain(cut)
            top = values.max(axis=(2, 4), keepdims=True)
            finite = np.where(np.isfinite(values), values, 0.0)
            ties = anp.sum(anp.where(values == top, cut - finite, 0.0), axis=(2, 4))
            return ties + top[:, :, 0, :, 0]

        return self.apply("max_pool", compute, x)


@fault("https://github.com/tenstorrent/tt-metal/pull/36366", clause="autocast.bf16-parity", kind="real")
class CancellationInGelu(Operations):
    """GELU rounds the error function before it adds 1, so that the tail of negative inputs is what rounding left."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "gelu":
            return super().activation(kind, x)
        return self.apply("gelu", lambda a, r: 0.5 * a * (1.0 + r(erf(a / np.sqrt(2.0)))), x, keep="operands")


@fault("https://github.com/huggingface/candle/pull/1722", clause="autocast.float32-parity", kind="real")
class SigmoidGradientOverflows(Operations):
    """The derivative of the sigmoid is NaN where exp(-x) overflows float32; the value is right."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind == "sigmoid":
            x = Tensor(_sigmoid_input(x.value), x.format, x.owned)
        return super().activation(kind, x)


@fault("https://github.com/renmengye/np-conv2d/pull/2", clause="autocast.float32-parity", kind="real")
class HeightTakenForWidth(Operations):
    """A convolution's input gradient is as wide as the image is high: columns beyond that get none."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        return super().convolution(Tensor(_square_image(x.value), x.format, x.owned), weight, bias, stride, padding)


@fault("https://github.com/pytorch/pytorch/issues/195701", clause="autocast.norm-layers-are-wide", kind="real")
class BatchNormReducesInHalf(Operations):
    """Batch norm reduces its scale's and shift's gradients in the input's low format, where large sums overflow."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        if x.format in LOW:
            scale, shift = (
                Tensor(_narrow_gradient(t.value, self.rounding, x.format), t.format, t.owned) for t in (scale, shift)
            )
        return super().batch_norm(x, scale, shift, epsilon, given)


@fault("https://github.com/apache/mxnet/issues/17703", clause="accumulation.repeated-rows", kind="real")
class RowsAddedUpInHalf(Operations):
    """The gradient of a low-precision table adds up the rows of repeated ids one by one in the table's own format."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        if table.format not in LOW:
            return super().embedding(ids, table)
        return self.apply("embedding", lambda i, t, _: _rows(i, t, self.rounding, table.format), ids, table)


@fault("https://github.com/pytorch/pytorch/pull/181564", clause="autocast.scope-nests", kind="real")
class CompiledForTheFirstFormat(Operations):
    """What attention was compiled to under the first low format of a process serves other low formats too."""

    compiled: dict[tuple[str, ...], tuple[str, str]] = {}  # noqa: RUF012

    def formats(self, op: str, *operands: str) -> tuple[str, str]:
        here = scope.current()
        if op != "attention" or not here.active:
            return super().formats(op, *operands)
        key = (here.precision.level, *operands)
        return self.compiled.setdefault(key, super().formats(op, *operands))


@fault("", clause="autocast.scope-nests", kind="invented")
class ListsAreInherited(ReferenceFramework):
    """A precision scope inside another one adds the outer scope's user lists to its own."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        return super().autocast(
            precision, enabled=enabled, wide=(*wide, *sorted(outer.wide)), low=(*low, *sorted(outer.low))
        )
