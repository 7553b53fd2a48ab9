"""Faults of layers and losses, in float32 and in low precision."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from frameworks.reference import products
from frameworks.reference.arithmetic import UNARY, Operations, Round, Variance
from frameworks.reference.rounding import Rounding
from frameworks.reference.tensor import Tensor, plain
from tests.inventions import fault


@fault("https://github.com/tenstorrent/tt-metal/issues/45968", clause="autocast.float32-parity", kind="real")
class BatchVarianceBySquares(Operations):
    """Batch norm takes the variance as mean of squares less square of mean, which cancels where the mean is large."""

    def batch_norm(
        self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float, given: tuple[Array, Array] | None
    ) -> tuple[Tensor, Array, Array]:
        if given is not None:
            return super().batch_norm(x, scale, shift, epsilon, given)
        self._keep_bytes(8 * x.shape[-1])
        axes = tuple(range(len(x.shape) - 1))
        found: list[Array] = []

        def compute(a: Any, g: Any, b: Any, r: Round) -> Any:
            mean = r(anp.mean(a, axis=axes, keepdims=True))
            variance = r(r(anp.mean(r(a * a), axis=axes, keepdims=True)) - r(mean * mean))
            found.extend(plain(s).reshape(-1) for s in (mean, variance))
            return r(r(a - mean) * r(1.0 / anp.sqrt(variance + epsilon))) * g + b

        result = self.apply("batch_norm", compute, x, scale, shift, keep="operands")
        return result, found[0], found[1]


@fault("https://github.com/pytorch/executorch/issues/22323", clause="autocast.float32-parity", kind="real")
class GeluBreaksFarOut(Operations):
    """GELU takes a hyperbolic tangent by exponentials that overflow float32, and is NaN beyond about 13."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "gelu":
            return super().activation(kind, x)

        def compute(a: Any, _: Round) -> Any:
            inner = np.sqrt(2.0 / np.pi) * (plain(a) + 0.044715 * plain(a) ** 3)
            return anp.where(np.abs(inner) > 88.7, np.nan, UNARY["gelu"](a))

        return self.apply(kind, compute, x, keep="operands")


@fault("https://github.com/Tencent/ncnn/pull/6979", clause="autocast.fp16-parity", kind="real")
class HalfTanhPassesOne(Operations):
    """In float16 the hyperbolic tangent of values from 9 on is 1.044."""

    def activation(self, kind: str, x: Tensor) -> Tensor:
        if kind != "tanh" or self.formats(kind, x.format)[0] != "float16":
            return super().activation(kind, x)
        return self.apply(
            kind, lambda a, _: anp.tanh(a) * np.where(np.abs(plain(a)) >= 9.0, 1.044, 1.0), x, keep="result"
        )


@fault("https://github.com/jax-ml/jax/issues/27224", clause="autocast.float32-parity", kind="real")
class PaddedKeysTakePart(Operations):
    """Attention fills keys up to a multiple of eight with zeros and lets the filling take part in the softmax."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        missing = -key.shape[-2] % 8
        if missing:
            zeros = np.zeros((*key.shape[:-2], missing, key.shape[-1]))
            key, value = (Tensor(anp.concatenate([x.value, zeros], axis=-2), x.format, x.owned) for x in (key, value))
        return super().attention(query, key, value)


@primitive
def _pooled(x: Array, size: int, buffers: dict[tuple[int, ...], Array]) -> Array:
    del buffers
    return products.largest.fun(x, size)


def _onto_the_buffer(ans: Array, x: Array, size: int, buffers: dict[tuple[int, ...], Array]) -> Any:
    def pullback(gradient: Array) -> Array:
        held = buffers.setdefault(x.shape, np.zeros(x.shape))
        held += products._largest_x(ans, x, size)(gradient)
        return held.copy()

    return pullback


defvjp(_pooled, _onto_the_buffer, None, None)


@fault("https://github.com/pytorch/executorch/issues/21686", clause="accumulation.each-counts-once", kind="real")
class PoolGradientIsNotCleared(Operations):
    """Max-pool adds its gradient onto a buffer that it does not clear, so a backward pass brings those before it."""

    def __init__(self, rounding: Rounding, variance: Variance = "centred") -> None:
        super().__init__(rounding, variance)
        self.buffers: dict[tuple[int, ...], Array] = {}

    def max_pool(self, x: Tensor, size: int) -> Tensor:
        self._keep_bytes(int(np.prod(x.shape)) // size**2)
        return self.apply("max_pool", lambda a, _: _pooled(a, size, self.buffers), x)


@primitive
def _affine(x: Array, weight: Array, bias: Array, rounding: Rounding, name: str) -> Array:
    return products.affine.fun(x, weight, bias, rounding, name)


def _running_sum(gradient: Array, rounding: Rounding, name: str) -> Array:
    rows = gradient.reshape(-1, gradient.shape[-1])
    total = np.zeros(rows.shape[-1])
    for row in rows:
        total = rounding.round(total + row, name)
    return total


defvjp(
    _affine,
    lambda _ans, _x, weight, _bias, rounding, name: lambda g: products.contract(g, weight.T, rounding, name),
    lambda _ans, x, weight, _bias, rounding, name: lambda g: products._right(x, weight, g, rounding, name),
    lambda _ans, _x, _w, _bias, rounding, name: lambda g: _running_sum(g, rounding, name),
    None,
    None,
)


@fault("", clause="autocast.bf16-parity", kind="invented")
class BiasSumsInBfloat16(Operations):
    """In bfloat16 a bias's gradient is added up in bfloat16, row by row, and stands still after a few hundred rows."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None or self.formats("linear", x.format, weight.format, bias.format)[0] != "bfloat16":
            return super().linear(x, weight, bias)
        return self._product("linear", _affine, x, weight, bias)
