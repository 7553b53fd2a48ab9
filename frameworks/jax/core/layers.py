"""Fixture layers as Flax Linen modules, and where each keeps its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fixtures import layers as fixture
from frameworks.jax.core.functions import square

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "tanh": nn.tanh,
    "sigmoid": nn.sigmoid,
}


OUTPUTS, PERTURBATIONS = "intermediates", "perturbations"
"""Collections of Linen: what modules sow on the way, and zeros added there, whose gradient is that of the sum."""


def expose(module: nn.Module, name: str, value: jax.Array) -> jax.Array:
    """The value as it is, seen by who asks for either collection; without them both calls of Linen do nothing."""
    value = module.perturb(name, value, PERTURBATIONS)
    module.sow(OUTPUTS, name, value)
    return value


class PositionTable(nn.Module):
    """x + table in the computing format; the table is (length, width)."""

    length: int
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.length, x.shape[-1])
        table = self.param("embedding", nn.initializers.zeros_init(), shape, self.param_dtype)
        x, table = nn.dtypes.promote_dtype(x, table, dtype=self.dtype)
        return x + table


class Block(nn.Module):
    """One fixture layer that computes in `dtype` and keeps its parameters in `param_dtype`.

    Attributes:
        product: makes the product of dense layers, None for JAX's own.
        used: the block that `Again` calls.
    """

    layer: fixture.Layer
    dtype: Any
    param_dtype: Any
    product: Any = None
    used: Block | None = None

    def setup(self) -> None:
        formats = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.inner: Any
        match self.layer:
            case fixture.Residual(body=body):
                self.body = [Block(part, self.dtype, self.param_dtype, self.product) for part in body]
            case fixture.Dense(units=units, bias=bias, wide=True):
                self.inner = nn.Dense(units, use_bias=bias, dtype=jnp.float32, param_dtype=jnp.float32)
            case fixture.Dense(units=units, bias=bias):
                self.inner = nn.Dense(units, use_bias=bias, dot_general_cls=self.product, **formats)
            case fixture.Convolution(filters=filters, size=size, stride=stride, padding=padding):
                self.inner = nn.Conv(filters, (size, size), strides=stride, padding=padding, **formats)
            case fixture.BatchNorm(momentum=momentum, epsilon=epsilon):
                self.inner = nn.BatchNorm(momentum=1.0 - momentum, epsilon=epsilon, **formats)
            case fixture.LayerNorm(epsilon=epsilon):
                self.inner = nn.LayerNorm(epsilon=epsilon, **formats)
            case fixture.Embedding(entries=entries, width=width):
                self.inner = nn.Embed(entries, width, **formats)
            case fixture.Positions(length=length):
                self.inner = PositionTable(length, **formats)
            case fixture.SelfAttention(heads=heads):
                self.inner = nn.MultiHeadDotProductAttention(heads, **formats)
            case fixture.Dropout(rate=rate):
                self.inner = nn.Dropout(rate)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return expose(self, "output", self.output(x, train))

    def output(self, x: jax.Array, train: bool) -> jax.Array:
        """The layer's output, not shown."""
        match self.layer:
            case fixture.Residual():
                y = x
                for part in self.body:
                    y = part(y, train)
                return x + y
            case fixture.BatchNorm():
                return self.inner(x, use_running_average=not train)
            case fixture.Dropout():
                return self.inner(x, deterministic=not train)
            case fixture.Activation(kind=kind):
                return _ACTIVATIONS[kind](x)
            case fixture.Flatten():
                return x.reshape((len(x), -1))
            case fixture.UserFunction():
                return square(x)
            case fixture.Again():
                assert self.used is not None
                return self.used.output(x, train)
            case fixture.MaxPool(size=size):
                return nn.max_pool(x, (size, size), strides=(size, size))
            case _:
                return self.inner(x)


_LINEAR = {"kernel": "weight", "bias": "bias"}
_PROJECTIONS = {"query": "query", "key": "key", "value": "value", "out": "output"}


def _places(layer: fixture.Layer) -> dict[str, str]:
    """The canonical name of each leaf of `layer`, a parameter or a statistic, by its place below `inner`."""
    match layer:
        case fixture.Dense() | fixture.Convolution():
            return _LINEAR
        case fixture.BatchNorm() | fixture.LayerNorm():
            return {"scale": "scale", "bias": "shift", "mean": "mean", "var": "variance"}
        case fixture.Embedding() | fixture.Positions():
            return {"embedding": "weight"}
        case fixture.SelfAttention():
            projections, leaves = _PROJECTIONS.items(), _LINEAR.items()
            return {f"{own}/{leaf}": f"{name}.{kind}" for own, name in projections for leaf, kind in leaves}
        case _:
            return {}


def names(layer: fixture.Layer, path: str, place: str) -> dict[str, str]:
    """Canonical names of the leaves of `layer` at `path`, inner layers included, by their joined path from `place`."""
    result = {f"{place}/inner/{key}": f"{path}.{name}" for key, name in _places(layer).items()}
    if isinstance(layer, fixture.Residual):
        for index, part in enumerate(layer.body):
            result |= names(part, f"{path}.body.{index}", f"{place}/body_{index}")
    return result


def output_places(layer: fixture.Layer, path: str, place: str) -> dict[str, str]:
    """Where `expose` has the output of `layer` and of the layers inside it: joined path from `place`, by their path."""
    result = {path: f"{place}/output"}
    if isinstance(layer, fixture.Residual):
        for index, part in enumerate(layer.body):
            result |= output_places(part, f"{path}.body.{index}", f"{place}/body_{index}")
    return result
