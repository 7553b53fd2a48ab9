"""Fixture layers as `paddle.nn` layers, and their parameters."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import paddle

from fixtures import layers as fixture
from frameworks.paddle.core.functions import UserFunctionLayer

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


class Float32Linear(paddle.nn.Linear):
    """A linear layer in float32: a region without auto_cast."""

    def forward(self, x: Any) -> Any:
        with paddle.amp.auto_cast(enable=False):
            return super().forward(x.astype("float32"))


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


class UsedAgain(paddle.nn.Layer):
    """Calls a layer that stands further ahead; it is no sublayer of this one."""

    def __init__(self, used: Any) -> None:
        super().__init__()
        self._used = (used,)

    def forward(self, x: Any) -> Any:
        return self._used[0](x)


class TiedHead(paddle.nn.Layer):
    """The product with an embedding's table, transposed."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: Any) -> Any:
        return paddle.matmul(x, self.weight, transpose_y=True)


def _head(head: fixture.Head, inputs: int, before: Sequence[Any]) -> Any:
    if head.tied is not None:
        return TiedHead(before[head.tied])
    return WideLinear(inputs, head.units) if head.format == "float64" else paddle.nn.Linear(inputs, head.units)


def build_layer(layer: fixture.Layer, shape: fixture.Shape, before: Sequence[Any] = ()) -> Any:
    """The Paddle layer for `layer`, whose samples come in `shape` (no batch axis), behind the layers `before`."""
    width = shape[-1]
    match layer:
        case fixture.Dense(units=units, bias=bias, wide=True):
            return Float32Linear(width, units, bias_attr=None if bias else False)
        case fixture.Dense(units=units, bias=bias):
            return paddle.nn.Linear(width, units, bias_attr=None if bias else False)
        case fixture.Convolution():
            sides: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "data_format": "NHWC"}
            return paddle.nn.Conv2D(width, layer.filters, layer.size, **sides)
        case fixture.BatchNorm():
            common: dict[str, Any] = {"momentum": 1.0 - layer.momentum, "epsilon": layer.epsilon}
            if len(shape) == 3:
                return paddle.nn.BatchNorm2D(width, data_format="NHWC", **common)
            return paddle.nn.BatchNorm1D(width, data_format="NLC" if len(shape) == 2 else "NC", **common)
        case fixture.LayerNorm(epsilon=epsilon):
            return paddle.nn.LayerNorm(width, epsilon=epsilon)
        case fixture.Embedding(entries=entries, width=columns):
            return paddle.nn.Embedding(entries, columns)
        case fixture.Positions(length=length):
            return PositionTable(length, width)
        case fixture.SelfAttention(heads=heads):
            return paddle.nn.MultiHeadAttention(width, heads)
        case fixture.Dropout(rate=rate):
            return paddle.nn.Dropout(rate)
        case fixture.Activation(kind=kind):
            return _ACTIVATIONS[kind]()
        case fixture.Flatten():
            return paddle.nn.Flatten()
        case fixture.MaxPool(size=size):
            return paddle.nn.MaxPool2D(size, size, data_format="NHWC")
        case fixture.Residual(body=body):
            return Shortcut(list(build_layers(body, shape)))
        case fixture.Again(at=at):
            return UsedAgain(before[at])
        case fixture.UserFunction():
            return UserFunctionLayer()
        case fixture.Heads(heads=parts):
            return paddle.nn.LayerDict({part.name: _head(part, width, before) for part in parts})


def build_layers(layers: tuple[fixture.Layer, ...], shape: fixture.Shape) -> Iterator[Any]:
    """Each layer in turn, for samples of this shape."""
    built: list[Any] = []
    for layer in layers:
        built.append(build_layer(layer, shape, built))
        yield built[-1]
        shape = fixture.output_shape(layer, shape)


def with_paths(
    layers: tuple[fixture.Layer, ...], built: list[Any], prefix: str = ""
) -> Iterator[tuple[str, fixture.Layer, Any]]:
    """The path of each layer and of those inside it, the fixture's layer and Paddle's."""
    for index, (layer, made) in enumerate(zip(layers, built, strict=True)):
        path = f"{prefix}{index}"
        yield path, layer, made
        if isinstance(layer, fixture.Residual):
            yield from with_paths(layer.body, list(made.body), f"{path}.body.")


def own_parameters(layer: fixture.Layer, made: Any) -> dict[str, Any]:
    """Paddle's parameters of one layer, without those of layers inside it, by their names in the fixture."""
    match layer:
        case fixture.BatchNorm() | fixture.LayerNorm():
            return {"scale": made.weight, "shift": made.bias}
        case fixture.SelfAttention():
            kinds: tuple[Literal["weight", "bias"], ...] = ("weight", "bias")
            return {f"{n}.{kind}": getattr(getattr(made, p), kind) for kind in kinds for n, p in _PROJECTIONS.items()}
        case fixture.Heads(heads=heads):
            own = [head for head in heads if head.tied is None]
            return {f"{h.name}.{kind}": getattr(made[h.name], kind) for kind in ("weight", "bias") for h in own}
        case fixture.Dense(bias=bias):
            return {"weight": made.weight, **({"bias": made.bias} if bias else {})}
        case fixture.Convolution():
            return {"weight": made.weight, "bias": made.bias}
        case fixture.Embedding() | fixture.Positions():
            return {"weight": made.weight}
        case _:
            return {}
