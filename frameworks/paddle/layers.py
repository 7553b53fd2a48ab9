"""Fixture layers as `paddle.nn` layers, and a network that recomputes segments of them.

The same network runs in dynamic and in static mode. Its parameters are found by their canonical names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.layers import (
    Activation,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    Layer,
    LayerNorm,
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
    Shape,
    output_shape,
)
from fixtures.model import Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds

REENTRANT, HOOKS = "reentrant", "non-reentrant"
_ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "relu": paddle.nn.ReLU,
    "gelu": paddle.nn.GELU,
    "tanh": paddle.nn.Tanh,
    "sigmoid": paddle.nn.Sigmoid,
}
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


class PositionTable(paddle.nn.Layer):
    """Adds a learned table (length, width) to x (N, length, width)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([length, width])

    def forward(self, x: Any) -> Any:
        return x + self.weight


class WideLinear(paddle.nn.Layer):
    """A float64 linear layer that stays outside low precision; x (..., inputs) is cast to float64."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([inputs, units], dtype="float64")
        self.bias = self.create_parameter([units], dtype="float64", is_bias=True)

    def forward(self, x: Any) -> Any:
        with paddle.amp.auto_cast(enable=False):
            return paddle.nn.functional.linear(x.astype("float64"), self.weight, self.bias)


class Shortcut(paddle.nn.Layer):
    """x + body(x)."""

    def __init__(self, body: list[Any]) -> None:
        super().__init__()
        self.body = paddle.nn.LayerList(body)

    def forward(self, x: Any) -> Any:
        y = x
        for layer in self.body:
            y = layer(y)
        return x + y


def _head(head: Head, inputs: int) -> Any:
    return WideLinear(inputs, head.units) if head.format == "float64" else paddle.nn.Linear(inputs, head.units)


def build_layer(layer: Layer, shape: Shape) -> Any:
    """The Paddle layer that does what `layer` says for samples of `shape` (no batch axis)."""
    width = shape[-1]
    match layer:
        case Dense(units=units, bias=bias):
            return paddle.nn.Linear(width, units, bias_attr=None if bias else False)
        case Convolution():
            sides: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "data_format": "NHWC"}
            return paddle.nn.Conv2D(width, layer.filters, layer.size, **sides)
        case BatchNorm():
            common: dict[str, Any] = {"momentum": 1.0 - layer.momentum, "epsilon": layer.epsilon}
            if len(shape) == 3:
                return paddle.nn.BatchNorm2D(width, data_format="NHWC", **common)
            return paddle.nn.BatchNorm1D(width, data_format="NLC" if len(shape) == 2 else "NC", **common)
        case LayerNorm(epsilon=epsilon):
            return paddle.nn.LayerNorm(width, epsilon=epsilon)
        case Embedding(entries=entries, width=columns):
            return paddle.nn.Embedding(entries, columns)
        case Positions(length=length):
            return PositionTable(length, width)
        case SelfAttention(heads=heads):
            return paddle.nn.MultiHeadAttention(width, heads)
        case Dropout(rate=rate):
            return paddle.nn.Dropout(rate)
        case Activation(kind=kind):
            return _ACTIVATIONS[kind]()
        case Flatten():
            return paddle.nn.Flatten()
        case MaxPool(size=size):
            return paddle.nn.MaxPool2D(size, size, data_format="NHWC")
        case Residual(body=body):
            return Shortcut(list(_build(body, shape)))
        case Heads(heads=parts):
            return paddle.nn.LayerDict({part.name: _head(part, width) for part in parts})


def _build(layers: tuple[Layer, ...], shape: Shape) -> Iterator[Any]:
    for layer in layers:
        yield build_layer(layer, shape)
        shape = output_shape(layer, shape)


class Segment(paddle.nn.Layer):
    """A run of consecutive layers; `calls` counts how often its forward has begun."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = paddle.nn.LayerList(parts)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        for part in self.parts:
            x = part(x)
        return x


class Recomputed(paddle.nn.Layer):
    """Calls a segment through `paddle.distributed.fleet.utils.recompute`."""

    def __init__(self, segment: Segment, variant: str) -> None:
        super().__init__()
        self.segment = segment
        self.reentrant = variant == REENTRANT

    def forward(self, x: Any) -> Any:
        return recompute(self.segment, x, use_reentrant=self.reentrant)


def cut(layers: list[Any], plan: Recompute | None) -> tuple[list[Any], list[Segment]]:
    """The layers as callables to run in turn, and the outer segments among them whose calls are counted.

    With `plan.depth` 2 each half of a segment is recomputed inside the segment's own recomputation; a segment of one
    layer has one half.
    """
    if plan is None:
        whole = Segment(layers)
        return [whole], [whole]
    variant = plan.variant or REENTRANT
    segments: list[Segment] = []
    for start, stop in segment_bounds(len(layers), plan):
        parts = layers[start:stop]
        if plan.depth == 2:
            halves = [layers[first:last] for first, last in inner_bounds((start, stop))]
            parts = [Recomputed(Segment(half), variant) for half in halves]
        segments.append(Segment(parts))
    return [Recomputed(segment, variant) for segment in segments], segments


class Network(paddle.nn.Layer):
    """A fixture model in Paddle; `forward` gives the outputs of the heads asked for, by name.

    `layers_by_path` has every layer by the paths of `Model.output_shapes`, in an order of its own.
    """

    def __init__(self, model: Model, plan: Recompute | None = None) -> None:
        super().__init__()
        *body, heads = _build(model.layers, model.sample)
        self.is_reentrant = plan is not None and plan.variant in (None, REENTRANT)
        self.steps, self.segments = cut(body, plan)
        self.runs = paddle.nn.LayerList(self.steps)
        self.heads = heads
        self.named = dict(_named(model, body, heads))
        self.statistics = dict(_statistics(model, body))
        self.layers_by_path = {path: layer for path, _, layer in _pairs(model.layers[:-1], body)}
        self.layers_by_path |= {f"{len(body)}.{head.name}": heads[head.name] for head in model.heads.heads}

    def forward(self, x: Any, heads: tuple[str, ...]) -> dict[str, Any]:
        for step in self.runs:
            x = step(x)
        return {name: self.heads[name](x) for name in heads}


def _pairs(layers: tuple[Layer, ...], built: list[Any], prefix: str = "") -> Iterator[tuple[str, Layer, Any]]:
    for index, (layer, made) in enumerate(zip(layers, built, strict=True)):
        path = f"{prefix}{index}"
        yield path, layer, made
        if isinstance(layer, Residual):
            yield from _pairs(layer.body, list(made.body), f"{path}.body.")


def _own(layer: Layer, made: Any) -> dict[str, Any]:
    match layer:
        case BatchNorm() | LayerNorm():
            return {"scale": made.weight, "shift": made.bias}
        case SelfAttention():
            kinds: tuple[Literal["weight", "bias"], ...] = ("weight", "bias")
            return {f"{n}.{kind}": getattr(getattr(made, p), kind) for kind in kinds for n, p in _PROJECTIONS.items()}
        case Heads(heads=heads):
            return {f"{h.name}.{kind}": getattr(made[h.name], kind) for kind in ("weight", "bias") for h in heads}
        case Dense(bias=bias):
            return {"weight": made.weight, **({"bias": made.bias} if bias else {})}
        case Convolution():
            return {"weight": made.weight, "bias": made.bias}
        case Embedding() | Positions():
            return {"weight": made.weight}
        case _:
            return {}


def _named(model: Model, body: list[Any], heads: Any) -> Iterator[tuple[str, Any]]:
    found = {
        f"{path}.{name}": parameter
        for path, layer, made in _pairs(model.layers, [*body, heads])
        for name, parameter in _own(layer, made).items()
    }
    return ((name, found[name]) for name in model.parameter_shapes())


def _statistics(model: Model, body: list[Any]) -> Iterator[tuple[str, Any]]:
    for path, layer, made in _pairs(model.layers[:-1], body):
        if isinstance(layer, BatchNorm):
            yield f"{path}.mean", made._mean
            yield f"{path}.variance", made._variance
