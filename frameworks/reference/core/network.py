"""The forward pass of a fixture model, its losses and layer traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import autograd.numpy as anp
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import (
    Activation,
    Again,
    Batch,
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
    Model,
    Positions,
    Residual,
    SelfAttention,
    UserFunction,
)
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.core.tape import Tensor, plain, tensor


class Surroundings(Protocol):
    """The run that a forward pass belongs to: random streams, buffers, dense layers and traces."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        """The dropout mask of this shape: True where a value is kept."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        """Running mean and variance of the batch norm at `path`."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        """Updates the running statistics with biased batch statistics of `count` values per channel."""

    def dense(self, path: str, x: Tensor, weight: Tensor, bias: Tensor | None, *, training: bool) -> Tensor:
        """The output of the dense layer at `path` for the input x."""

    def passing(self, path: str, output: Tensor) -> Tensor:
        """Hook for traces: receives the output of the layer at `path` and returns it unchanged."""


@dataclass(frozen=True)
class Pass:
    """One forward pass: its operations, its parameters by name, and the run that it belongs to."""

    ops: Operations
    parameters: Mapping[str, Tensor]
    surroundings: Surroundings
    training: bool

    def layers(self, layers: tuple[tuple[str, Layer], ...], x: Tensor) -> Tensor:
        """The output of consecutive layers, given with their paths, for the input x."""
        for path, layer in layers:
            x = self.surroundings.passing(path, self.layer(path, layer, x))
        return x

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        """The output of one layer for the input x."""
        ops = self.ops
        match layer:
            case Dense(bias=bias, wide=True):
                with scope.open_scope(scope.Scope()):
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
                x = ops.fan_out(x)
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
        x = self.ops.fan_out(x)
        for head in layer.heads:
            if head.name in names:
                features = self.ops.cast(x, "float64") if head.format == "float64" else x
                own = f"{path}.{head.name}"
                if head.tied is None:
                    weight, bias = (self._at(own, part) for part in ("weight", "bias"))
                    output = self.surroundings.dense(own, features, weight, bias, training=self.training)
                else:
                    output = self.ops.linear(features, self._read_tied_weight(head.tied), None)
                outputs[head.name] = self.surroundings.passing(own, output)
        return outputs

    def _read_tied_weight(self, at: int) -> Tensor:
        """The transposed table of the top-level embedding at index `at`, as a weight (width, units)."""
        table = self._at(str(at), "weight")
        return Tensor(anp.transpose(table.value), table.format, table.owned)

    def _wide(self, path: str, name: str) -> Tensor:
        return self.ops.cast(self._at(path, name), "float32")

    def _at(self, path: str, name: str) -> Tensor:
        return self.parameters[f"{path}.{name}"]

    def _batch_norm(self, path: str, layer: BatchNorm, x: Tensor) -> Tensor:
        running_statistics = None if self.training else self.surroundings.running_statistics(path)
        result, mean, variance = self.ops.batch_norm(
            x, self._at(path, "scale"), self._at(path, "shift"), layer.epsilon, running_statistics
        )
        if self.training:
            count = math.prod(x.shape[:-1])
            if count:
                self.surroundings.update_running_statistics(path, mean, variance, count, layer.momentum)
        return result

    def _attention(self, path: str, heads: int, x: Tensor) -> Tensor:
        count, length, width = x.shape
        x = self.ops.fan_out(x)

        def split(name: str) -> Tensor:
            y = self.ops.linear(x, self._at(path, f"{name}.weight"), self._at(path, f"{name}.bias"))
            cut = anp.swapaxes(anp.reshape(y.value, (count, length, heads, width // heads)), 1, 2)
            return Tensor(cut, y.format)

        mixed = self.ops.attention(split("query"), split("key"), split("value"))
        joined = Tensor(anp.reshape(anp.swapaxes(mixed.value, 1, 2), (count, length, width)), mixed.format)
        return self.ops.linear(joined, self._at(path, "output.weight"), self._at(path, "output.bias"))


def loss_sums(model: Model, ops: Operations, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """The loss of each head that has an output, summed over the batch's items, by head name."""
    sums = {}
    for name, kind in model.losses:
        if name in outputs:
            target = batch.targets[name]
            if kind == "cross_entropy":
                sums[name] = ops.cross_entropy(outputs[name], target, batch.mask)
            else:
                sums[name] = ops.squared_error(outputs[name], tensor(target, owned=False))
    return sums


@dataclass
class TracedTensors:
    """Records the output and the output gradient of each layer; gradients of several backward passes are added.

    Attributes:
        rounding: rounds each sum of gradients to the format of the layer's output.
        outputs: output and name of its format, by the layer's path.
        gradients: gradient with respect to the output, by the layer's path.
    """

    rounding: Rounding
    outputs: dict[str, tuple[Array, str]] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)

    def passing(self, path: str, output: Tensor) -> Tensor:
        """Records the output and returns it with a backward hook; of a recomputed layer the first output is kept."""
        self.outputs.setdefault(path, (plain(output.value), output.format))
        return Tensor(_passing(output.value, self, path), output.format, output.owned)

    def take_gradient(self, path: str, gradient: Array) -> None:
        """Adds the gradient that a backward pass computed for the output of the layer at `path`."""
        former = self.gradients.get(path)
        if former is not None:
            gradient = self.rounding.round(former + gradient, self.outputs[path][1])
        self.gradients[path] = gradient


@primitive
def _passing(x: Array, traced: TracedTensors, path: str) -> Array:
    del traced, path
    return x


def _make_pullback(_ans: Array, _x: Array, traced: TracedTensors, path: str) -> Callable[[Array], Array]:
    def pullback(gradient: Array) -> Array:
        traced.take_gradient(path, gradient)
        return gradient

    return pullback


defvjp(_passing, _make_pullback, None, None)
