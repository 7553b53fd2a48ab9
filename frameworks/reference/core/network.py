"""The forward pass of a fixture model: one layer after the other, on tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import autograd.numpy as anp

from fixtures.arrays import Array
from fixtures.layers import (
    Activation,
    Again,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Heads,
    Layer,
    LayerNorm,
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
    UserFunction,
)
from fixtures.model import Batch, Model
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor, tensor


class Surroundings(Protocol):
    """Random streams and buffers of a training forward pass."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        """Which values dropout keeps."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        """Running mean and variance of the batch norm at `path`."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        """Takes in the biased statistics of `count` values a channel."""

    def dense(self, path: str, x: Tensor, weight: Tensor, bias: Tensor | None, *, training: bool) -> Tensor:
        """The output of the dense layer at `path` for x."""

    def passing(self, path: str, output: Tensor) -> Tensor:
        """The output of the layer at `path`, unchanged; a hook for traces."""


@dataclass(frozen=True)
class Pass:
    """One forward pass: the operations, the parameters that it reads and where it runs."""

    ops: Operations
    parameters: Mapping[str, Tensor]
    surroundings: Surroundings
    training: bool

    def layers(self, layers: tuple[tuple[str, Layer], ...], x: Tensor) -> Tensor:
        """x through consecutive layers, each with its path."""
        for path, layer in layers:
            x = self.surroundings.passing(path, self.layer(path, layer, x))
        return x

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        """x through one layer."""
        ops = self.ops
        match layer:
            case Dense(bias=bias, wide=True):
                with scope.opened(scope.Scope()):
                    weight, shift = self._wide(path, "weight"), self._wide(path, "bias") if bias else None
                    return ops.linear(ops.cast(x, "float32"), weight, shift)
            case Dense(bias=bias):
                shift = self._at(path, "bias") if bias else None
                return self.surroundings.dense(path, x, self._at(path, "weight"), shift, training=self.training)
            case Convolution():
                weight, shift = self._at(path, "weight"), self._at(path, "bias")
                return ops.convolution(x, weight, shift, layer.stride, layer.padding)
            case BatchNorm():
                return self._batch_norm(path, layer, x)
            case LayerNorm(epsilon=epsilon):
                return ops.layer_norm(x, self._at(path, "scale"), self._at(path, "shift"), epsilon)
            case Embedding():
                return ops.embedding(x, self._at(path, "weight"))
            case Positions():
                return ops.add(x, self._at(path, "weight"))
            case SelfAttention(heads=heads):
                return self._attention(path, heads, x)
            case Dropout(rate=rate):
                if not self.training:
                    return x
                return ops.dropout(x, self.surroundings.draw_mask(x.shape, rate), rate)
            case Activation(kind=kind):
                return ops.activation(kind, x)
            case Flatten():
                return Tensor(x.value.reshape(x.shape[0], math.prod(x.shape[1:])), x.format, x.owned)
            case MaxPool(size=size):
                return ops.max_pool(x, size)
            case Residual(body=body):
                inner = tuple((f"{path}.body.{i}", part) for i, part in enumerate(body))
                x = ops.shared(x)
                return ops.add(x, self.layers(inner, x))
            case Again(layer=used, at=at):
                return self.layer(str(at), used, x)
            case UserFunction():
                return ops.user_function(x)
            case Heads():
                raise ValueError("heads must be the last layer; evaluate them with `heads()`")

    def heads(self, path: str, layer: Heads, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """The outputs of the heads in `names`; a float64 head takes its features in float64."""
        outputs = {}
        x = self.ops.shared(x)
        for head in layer.heads:
            if head.name in names:
                features = self.ops.cast(x, "float64") if head.format == "float64" else x
                own = f"{path}.{head.name}"
                if head.tied is None:
                    weight, bias = (self._at(own, part) for part in ("weight", "bias"))
                    output = self.surroundings.dense(own, features, weight, bias, training=self.training)
                else:
                    output = self.ops.linear(features, self._tied(head.tied), None)
                outputs[head.name] = self.surroundings.passing(own, output)
        return outputs

    def _tied(self, at: int) -> Tensor:
        """The table of the embedding at a place as a weight."""
        table = self._at(str(at), "weight")
        return Tensor(anp.transpose(table.value), table.format, table.owned)

    def _wide(self, path: str, name: str) -> Tensor:
        return self.ops.cast(self._at(path, name), "float32")

    def _at(self, path: str, name: str) -> Tensor:
        return self.parameters[f"{path}.{name}"]

    def _batch_norm(self, path: str, layer: BatchNorm, x: Tensor) -> Tensor:
        given = None if self.training else self.surroundings.running_statistics(path)
        result, mean, variance = self.ops.batch_norm(
            x, self._at(path, "scale"), self._at(path, "shift"), layer.epsilon, given
        )
        if self.training:
            count = 1
            for length in x.shape[:-1]:
                count *= length
            if count:
                self.surroundings.update_running_statistics(path, mean, variance, count, layer.momentum)
        return result

    def _attention(self, path: str, heads: int, x: Tensor) -> Tensor:
        count, length, width = x.shape
        x = self.ops.shared(x)

        def split(name: str) -> Tensor:
            y = self.ops.linear(x, self._at(path, f"{name}.weight"), self._at(path, f"{name}.bias"))
            cut = anp.swapaxes(anp.reshape(y.value, (count, length, heads, width // heads)), 1, 2)
            return Tensor(cut, y.format)

        mixed = self.ops.attention(split("query"), split("key"), split("value"))
        joined = Tensor(anp.reshape(anp.swapaxes(mixed.value, 1, 2), (count, length, width)), mixed.format)
        return self.ops.linear(joined, self._at(path, "output.weight"), self._at(path, "output.bias"))


def loss_sums(model: Model, ops: Operations, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """For each head that the batch has targets for, the sum of its losses over the batch's items."""
    sums = {}
    for name, kind in model.losses:
        if name in outputs:
            target = batch.targets[name]
            if kind == "cross_entropy":
                sums[name] = ops.cross_entropy(outputs[name], target, batch.mask)
            else:
                sums[name] = ops.squared_error(outputs[name], tensor(target, owned=False))
    return sums
