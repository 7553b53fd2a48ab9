"""Faults of single operations: values that are right nearly everywhere, and gradients at odd shapes and values."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from frameworks.reference.arithmetic import Operations
from frameworks.reference.products import _tiles
from frameworks.reference.rounding import Rounding
from frameworks.reference.tensor import Tensor, plain
from tests.inventions import fault

LOW = ("float16", "bfloat16")


@primitive
def _pooled(x: Array, size: int) -> Array:
    return _tiles(x, size).max(axis=-1)


def _to_every_tie(ans: Array, x: Array, size: int) -> Any:
    def pullback(gradient: Array) -> Array:
        spread = np.where(_tiles(x, size) == ans[..., None], gradient[..., None], 0.0)
        count, high, wide, channels = gradient.shape
        cut = spread.reshape(count, high, wide, channels, size, size).transpose(0, 1, 4, 2, 5, 3)
        return cut.reshape(x.shape)

    return pullback


defvjp(_pooled, _to_every_tie, None)


@fault("https://github.com/Theano/Theano/issues/5248", clause="autocast.float32-parity", kind="real")
class TiedMaximum(Operations):
    """Max pooling hands the whole gradient of a square to every value that equals its maximum."""

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        self._keep_bytes(int(np.prod(x.shape)) // size**2)
        return self.apply("max_pool", lambda a, _: _pooled(a, size), x)


@primitive
def _entering(x: Array, shift: int) -> Array:
    del shift
    return x


defvjp(_entering, lambda _ans, _x, shift: lambda g: np.roll(g, shift, axis=(1, 2)), None)


@fault("https://github.com/f-dangel/backpack/issues/30", clause="autocast.float32-parity", kind="real")
class StridedRemainder(Operations):
    """Where the stride does not divide what the kernel walks over, the gradient of the input lies off its place."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        rest = (x.shape[1] + 2 * padding - weight.shape[0]) % stride
        if rest:
            x = Tensor(_entering(x.value, rest), x.format, x.owned)
        return super().convolution(x, weight, bias, stride, padding)


@fault("https://github.com/ROCm/aiter/issues/5044", clause="autocast.fp16-parity", kind="real")
class OddRowSpill(Operations):
    """Layer norm of low-precision rows of odd width writes each row's end over the first value of the next row."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        result = super().layer_norm(x, scale, shift, epsilon)
        width = x.shape[-1]
        if x.format not in LOW or width % 2 == 0 or width == 1:
            return result
        rows = anp.reshape(result.value, (-1, width))
        later = anp.concatenate([rows[:-1, -1:], rows[1:, 1:]], axis=1)
        spilt = anp.concatenate([rows[:1], later], axis=0)
        return Tensor(anp.reshape(spilt, x.shape), result.format)


@primitive
def _cubed(x: Array) -> Array:
    return x


defvjp(_cubed, lambda _ans, x: lambda g: np.where(np.abs(x) ** 3 > 65504.0, np.nan, g))


@fault("https://github.com/facebookresearch/fairseq/issues/2235", clause="autocast.fp16-parity", kind="real")
class CubeOverflow(Operations):
    """The backward pass of GELU cubes its input in float16, so that an input above 40 has a gradient of NaN."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind == "gelu" and self.formats(kind, x.format)[0] == "float16":
            x = Tensor(_cubed(x.value), x.format, x.owned)
        return super().activation(kind, x)


class _HalvesUp:
    """A rounding under which a value halfway between two of bfloat16 goes away from zero."""

    def __init__(self, inner: Rounding) -> None:
        self.inner = inner
        self.constant, self.dtype = inner.constant, inner.dtype

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        result = self.inner.round(array, format_name, terms)
        if format_name != "bfloat16":
            return result
        single = np.asarray(array, np.float64).astype(np.float32)
        bits = single.view(np.uint32)
        tie = ((bits & np.uint32(0xFFFF)) == 0x8000) & np.isfinite(single) & (single == array)
        up = ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
        return np.where(tie, up.astype(np.float64), result)


@fault("https://github.com/pytorch/FBGEMM/pull/786", clause="autocast.bf16-parity", kind="real")
class HalvesAway(Operations):
    """Conversion to bfloat16 rounds halfway values away from zero, not to even."""

    def __init__(self, rounding: Rounding, variance: Any = "centred") -> None:
        super().__init__(_HalvesUp(rounding), variance)


@primitive
def _by_ratio(x: Array, mask: Array, rate: float) -> Array:
    return np.where(mask, x / (1.0 - rate), 0.0)


def _ratio(_ans: Array, x: Array, mask: Array, rate: float) -> Any:
    return lambda g: np.where(x == 0.0, g, np.where(mask, g / (1.0 - rate), 0.0))


defvjp(_by_ratio, _ratio, None, None)


@fault(
    "https://github.com/kaldi-asr/kaldi/issues/3890",
    clause="autocast.dropout-scales-what-it-keeps",
    kind="real",
)
class RatioForMask(Operations):
    """Dropout's backward pass takes the ratio of output to input for the mask, and lets all through where both are 0."""  # noqa: E501

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        self._keep_bytes(int(mask.size))
        return self.apply("dropout", lambda a, _: _by_ratio(a, mask, rate), x)


@primitive
def _with_tail(x: Array, mask: Array, rate: float) -> Array:
    return np.where(mask, x / (1.0 - rate), 0.0)


def _tail(_ans: Array, _x: Array, mask: Array, rate: float) -> Any:
    flat, tail = mask.reshape(-1).copy(), mask.size % 4
    if tail and mask.size > 4:
        flat[-tail:] = flat[:tail]
    return lambda g: np.where(flat.reshape(mask.shape), g / (1.0 - rate), 0.0)


defvjp(_with_tail, _tail, None, None)


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/29813",
    clause="autocast.dropout-scales-what-it-keeps",
    kind="real",
)
class MaskTail(Operations):
    """Dropout's backward pass goes by fours and does not load the mask of what is left over at the end."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        self._keep_bytes(int(mask.size))
        return self.apply("dropout", lambda a, _: _with_tail(a, mask, rate), x)


@fault("", clause="autocast.float32-parity", kind="invented")
class LastRowFrozen(Operations):
    """A bounds check that is one too strict keeps the gradient of an embedding's last row from it."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        def pick(i: Any, t: Any, _: Any) -> Any:
            inside = i < t.shape[0] - 1
            return anp.where(inside[..., None], t[i], plain(t)[i])

        return self.apply("embedding", pick, ids, table)
