"""The forward pass of a fixture model, its losses and layer traces, and the catalogue's operations for `run_op`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import (
    SCALE,
    Activation,
    Again,
    Batch,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    FunctionUse,
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
from frameworks.contract import FunctionResult, OpResult
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import UNARY, Operations, Round, normalise, softmax
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
            count = 1
            for length in x.shape[:-1]:
                count *= length
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


class ReferenceFunction:
    """An operation of three inputs whose backward pass the user wrote. Faults override a method."""

    def run_uses(self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None) -> FunctionResult:
        """Runs all uses; returns the inputs that needed a gradient in each, and the gradients summed over the uses."""
        needs = self.needs(use.needs, recomputed=variant is not None)
        y, z = (np.full_like(inputs[0], name in use.outputs) for name in "yz")
        gradients = self.backward(inputs, y, z)
        results = [
            self.sum_gradients([gradient] * use.times) if asked else None
            for asked, gradient in zip(needs, gradients, strict=True)
        ]
        return FunctionResult((needs,) * use.times, tuple(results))

    def needs(self, needs: tuple[bool, bool, bool], *, recomputed: bool) -> tuple[bool, bool, bool]:
        """Returns whether each input needs a gradient, as the framework reports it to the backward pass."""
        return needs

    def backward(self, inputs: tuple[Array, Array, Array], y: Array, z: Array) -> tuple[Array, ...]:
        """The user's backward pass: the gradients of the three inputs, from the gradients of the outputs y and z."""
        a, b, _ = inputs
        return 2.0 * SCALE * y * b, SCALE * y * a + z, z

    def sum_gradients(self, gradients: list[Array]) -> Array:
        """The gradient of one input, from its gradients in each use."""
        return np.asarray(sum(gradients[1:], gradients[0]))


_EPSILON = 1e-5
Carrier = Callable[..., Any]


def _log_softmax(a: Any, r: Round) -> Any:
    shifted = r(a - a.max(axis=-1, keepdims=True))
    return shifted - r(np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def _logsumexp(a: Any, r: Round) -> Any:
    top = a.max(axis=-1, keepdims=True)
    return (top + r(np.log(np.sum(np.exp(r(a - top)), axis=-1, keepdims=True))))[..., 0]


def _cross_entropy(a: Any, labels: Array, r: Round) -> Any:
    return -np.take_along_axis(r(_log_softmax(a, r)), labels[..., None], axis=-1).mean()


def _huber(a: Any, b: Any, r: Round) -> Any:
    distance = np.abs(r(a - b))
    return np.where(distance <= 1.0, 0.5 * distance**2, distance - 0.5).mean()


def _binary_cross_entropy(a: Any, b: Any, r: Round) -> Any:
    return r(np.maximum(a, 0.0) - a * b + np.log1p(np.exp(-np.abs(a)))).mean()


def _rms_norm(a: Any, r: Round) -> Any:
    return a * r(1.0 / np.sqrt(r(np.mean(a * a, axis=-1, keepdims=True)) + _EPSILON))


def _average_pool(a: Any, _: Round) -> Any:
    count, height, width, channels = a.shape
    return a.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def _dropout(a: Any, _: Round) -> Any:
    return np.where(np.random.default_rng(0).random(a.shape) >= 0.5, a / 0.5, 0.0)


CARRIERS: dict[str, Carrier] = {
    "sum": lambda a, _: np.sum(a),
    "mean": lambda a, _: np.mean(a),
    "variance": lambda a, r: np.mean(r(a - r(np.mean(a))) ** 2),
    "norm": lambda a, r: np.sqrt(r(np.sum(a * a))),
    "prod": lambda a, _: np.prod(a),
    "max": lambda a, _: np.max(a),
    "cumsum": lambda a, _: np.cumsum(a, axis=-1),
    "cumprod": lambda a, _: np.cumprod(a, axis=-1),
    "logsumexp": _logsumexp,
    "softmax": softmax,
    "log_softmax": _log_softmax,
    "cross_entropy": _cross_entropy,
    "squared_error": lambda a, b, r: np.mean(r(a - b) ** 2),
    "absolute_error": lambda a, b, r: np.mean(np.abs(r(a - b))),
    "huber": _huber,
    "kl_divergence": lambda a, b, r: np.mean(np.sum(r(r(b * r(np.log(b))) - r(b * a)), axis=-1)),
    "binary_cross_entropy_logits": _binary_cross_entropy,
    "layer_norm": lambda a, r: normalise(a, (-1,), _EPSILON, r)[0],
    "instance_norm": lambda a, r: normalise(a, (-1,), _EPSILON, r)[0],
    "batch_norm": lambda a, r: normalise(a, (0,), _EPSILON, r)[0],
    "rms_norm": _rms_norm,
    "exp": lambda a, _: np.exp(a),
    "expm1": lambda a, _: np.expm1(a),
    "log": lambda a, _: np.log(a),
    "log1p": lambda a, _: np.log1p(a),
    "pow": lambda a, _: a**3.0,
    "square": lambda a, _: a * a,
    "sqrt": lambda a, _: np.sqrt(a),
    "rsqrt": lambda a, _: 1.0 / np.sqrt(a),
    "reciprocal": lambda a, _: 1.0 / a,
    "abs": lambda a, _: np.abs(a),
    "sin": lambda a, _: np.sin(a),
    "cos": lambda a, _: np.cos(a),
    "leaky_relu": lambda a, _: np.where(a > 0.0, a, 0.01 * a),
    "elu": lambda a, _: np.where(a > 0.0, a, np.expm1(np.minimum(a, 0.0))),
    "silu": lambda a, r: a * r(UNARY["sigmoid"](a)),
    "softplus": lambda a, _: np.logaddexp(0.0, a),
    "add": lambda a, b, _: a + b,
    "subtract": lambda a, b, _: a - b,
    "multiply": lambda a, b, _: a * b,
    "divide": lambda a, b, _: a / b,
    "maximum": lambda a, b, _: np.maximum(a, b),
    "where": lambda a, b, _: np.where(a > 0.0, a, b),
    "concatenate": lambda a, b, _: np.concatenate([a, b], axis=-1),
    "stack": lambda a, b, _: np.stack([a, b]),
    "average_pool": _average_pool,
    "dropout": _dropout,
    "transpose": lambda a, _: a.T,
    "reshape": lambda a, _: a.reshape(-1),
    **{kind: lambda a, _, f=function: f(a) for kind, function in UNARY.items()},
}
"""Operations that are functions of float64 carriers, by name; the last argument rounds an intermediate value."""


def _convolution(ops: Operations, x: Tensor, weight: Tensor) -> Tensor:
    bias = Tensor(np.zeros(weight.shape[-1]), weight.format)
    return ops.convolution(x, weight, bias, stride=1, padding=0)


TENSORS: dict[str, Callable[..., Tensor]] = {
    "matmul": lambda ops, a, b: ops.matmul(a, b),
    "batched_matmul": lambda ops, a, b: ops.matmul(a, b, "batched_matmul"),
    "einsum": lambda ops, a, b: ops.matmul(a, b, "einsum"),
    "linear": lambda ops, x, weight, bias: ops.linear(x, weight, bias),
    "conv2d": _convolution,
    "attention": lambda ops, q, k, v: ops.attention(q, k, v),
    "max_pool": lambda ops, x: ops.max_pool(x, 2),
    "embedding": lambda ops, ids, table: ops.embedding(ids, table),
    "gather_ids": lambda _, ids: Tensor(ids.value + 0, ids.format),
    "argmax": lambda _, x: Tensor(np.argmax(x.value, axis=-1), "int64"),
}
"""Operations that call a method of `Operations`, or that compute only integers, by name."""


def run(ops: Operations, op: str, *arrays: Array) -> OpResult:
    """Runs one operation of `frameworks.operations` in the open precision scope.

    Raises:
        ValueError: the catalogue has no operation of that name.
    """
    operands = [tensor(np.asarray(array)) for array in arrays]
    with np.errstate(all="ignore"):
        if op in TENSORS:
            result = TENSORS[op](ops, *operands)
        elif op in CARRIERS:
            result = ops.apply(op, CARRIERS[op], *operands)
        else:
            raise ValueError(f"unknown operation {op!r}")
    value = np.asarray(result.value)
    return OpResult(value.astype(ops.rounding.dtype(result.format)) if result.floating else value, result.format)


def tanh_of_product(ops: Operations, x: Any, w: Any) -> Any:
    """Σ tanh(x·w) of float32 carriers x (n, m) and w (m, k), as a carrier."""
    product = ops.matmul(Tensor(x, "float32"), Tensor(w, "float32"))
    return ops.apply("sum", lambda a, _: anp.sum(a), ops.activation("tanh", product)).value
