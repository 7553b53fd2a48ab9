"""Fixture layers as Keras layers, and where each canonical parameter and buffer lives in them.

Keras keeps dense kernels (inputs, outputs), convolution kernels (height, width, inputs, filters) and embeddings
(entries, width), as the fixtures do; only attention's projections have other shapes, (width, heads, size) and
(heads, size, width), which a reshape gives.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras

from fixtures import layers as fixture
from frameworks.keras_common.functions import square
from frameworks.keras_common.layer_outputs import Tensor, run_layer

SEEDS_PER_RUN = 1000

ZEROS = {"kernel_initializer": "zeros"}
"""Kernels are loaded before a run starts; drawing Keras' own first would only cost time."""


class _PlainLayer(keras.layers.Layer):
    """No variables, and an output of the input's shape, unless a subclass says otherwise."""

    def build(self, input_shape: fixture.Shape) -> None:
        pass

    def compute_output_shape(self, input_shape: fixture.Shape) -> fixture.Shape:
        return input_shape


class KerasPositionTable(_PlainLayer):
    """x + table, for sequences (N, length, width)."""

    def build(self, input_shape: fixture.Shape) -> None:
        self.table = self.add_weight(shape=tuple(input_shape[1:]), initializer="zeros", name="table")

    def call(self, inputs: Tensor) -> Tensor:
        return inputs + self.table


class PaddedConvolution(keras.layers.Layer):
    """Symmetric zero padding, then a convolution; Keras' own "same" pads strided convolutions on one side."""

    def __init__(self, layer: fixture.Convolution, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.padding = keras.layers.ZeroPadding2D(layer.padding, name="padding")
        self.convolution = keras.layers.Conv2D(layer.filters, layer.size, layer.stride, name="convolution", **ZEROS)

    def build(self, input_shape: fixture.Shape) -> None:
        self.padding.build(input_shape)
        self.convolution.build(self.padding.compute_output_shape(input_shape))

    def compute_output_shape(self, input_shape: fixture.Shape) -> fixture.Shape:
        return tuple(self.convolution.compute_output_shape(self.padding.compute_output_shape(input_shape)))

    def call(self, inputs: Tensor) -> Tensor:
        return self.convolution(self.padding(inputs))


class SelfAttentionLayer(_PlainLayer):
    """Keras' own multi-head attention of a sequence with itself."""

    def __init__(self, heads: int, width: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads, name="attention", **ZEROS)

    def build(self, input_shape: fixture.Shape) -> None:
        self.attention.build(input_shape, input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        return self.attention(inputs, inputs)


class ResidualLayer(_PlainLayer):
    """x + body(x)."""

    def __init__(self, body: list[keras.layers.Layer], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.body = body

    def build(self, input_shape: fixture.Shape) -> None:
        build_layers(self.body, input_shape)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return inputs + run_layers(self.body, inputs, training)


class KerasUsedAgain(_PlainLayer):
    """Calls a layer that stands further ahead, and is built there."""

    def __init__(self, used: keras.layers.Layer, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.used = used

    def compute_output_shape(self, input_shape: fixture.Shape) -> fixture.Shape:
        return tuple(self.used.compute_output_shape(input_shape))

    def call(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


class KerasUserFunction(_PlainLayer):
    """`fixtures.layers.UserFunction`."""

    def call(self, inputs: Tensor) -> Tensor:
        return square(inputs)


class KerasTiedHead(_PlainLayer):
    """The product with an embedding's table, transposed, by Keras' own layer for both."""

    def __init__(self, table: keras.layers.ReversibleEmbedding, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.table = table

    def compute_output_shape(self, input_shape: fixture.Shape) -> fixture.Shape:
        return (*input_shape[:-1], self.table.input_dim)

    def call(self, inputs: Tensor) -> Tensor:
        return self.table(inputs, reverse=True)


def build_layers(layers: Sequence[keras.layers.Layer], shape: fixture.Shape) -> fixture.Shape:
    """Builds the variables of a sequence of layers; returns the last output shape.

    Without this Keras runs the layers symbolically, again at each level of nesting, to find their shapes.
    """
    for layer in layers:
        layer.build(shape)
        shape = tuple(layer.compute_output_shape(shape))
    return shape


def tells_training(layer: keras.layers.Layer) -> bool:
    """Whether the layer, or one inside it, does something else in training than in evaluation."""
    if isinstance(layer, ResidualLayer):
        return any(tells_training(part) for part in layer.body)
    return isinstance(layer, keras.layers.Dropout | keras.layers.BatchNormalization) or is_float8(layer)


def is_float8(layer: keras.layers.Layer) -> bool:
    """Whether the layer multiplies in float8, and so updates its amax history in training."""
    return getattr(layer, "quantization_mode", None) == "float8"


def run_layers(layers: list[keras.layers.Layer], x: Tensor, training: bool) -> Tensor:
    """Layers one after another; `training` is passed to those that distinguish training from evaluation."""
    for layer in layers:
        takes_training = isinstance(layer, ResidualLayer) or tells_training(layer)
        x = run_layer(layer, x, training=training) if takes_training else run_layer(layer, x)
    return x


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | str] = {
    "relu": "relu",
    "gelu": lambda x: keras.activations.gelu(x, approximate=False),
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}


class Builder:
    """Makes Keras layers under the dtype policy that is set while it works; dropout seeds count up from the run's.

    With a `history` dense layers train in float8, with an amax history of that length.

    Args:
        tied: places of the embeddings whose table a head has too.
    """

    def __init__(self, seed: int, history: int | None = None, tied: Collection[int] = ()) -> None:
        self._history = history
        self._tied = tied
        self._next_seed = seed * SEEDS_PER_RUN
        self.dropouts: dict[str, keras.layers.Dropout] = {}
        self.sources: dict[str, tuple[keras.layers.Layer, fixture.Layer | fixture.Head]] = {}

    def layer(self, layer: fixture.Layer, path: str, shape: fixture.Shape) -> keras.layers.Layer:
        """The Keras layer of the fixture layer at `path`, whose samples come in `shape`."""
        made = self._make(layer, path, shape)
        self.sources[path] = (made, layer)
        return made

    def head(self, head: fixture.Head, path: str) -> keras.layers.Layer:
        """The dense output layer of one head."""
        if head.tied is not None:
            made = KerasTiedHead(self.sources[str(head.tied)][0], name=f"{path}-{head.name}")
            self.sources[f"{path}.{head.name}"] = (made, head)
            return made
        format_ = {"dtype": "float64"} if head.format == "float64" else self._float8()
        made = keras.layers.Dense(head.units, name=f"{path}-{head.name}", **ZEROS, **format_)
        self.sources[f"{path}.{head.name}"] = (made, head)
        return made

    def _float8(self) -> dict[str, Any]:
        if self._history is None:
            return {}
        source = keras.config.dtype_policy().name
        policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", source, amax_history_length=self._history)
        return {"dtype": policy}

    def _make(self, layer: fixture.Layer, path: str, shape: fixture.Shape) -> keras.layers.Layer:
        name = "layer-" + path.replace(".", "-")
        match layer:
            case fixture.Dense(wide=True):
                return keras.layers.Dense(layer.units, use_bias=layer.bias, name=name, dtype="float32", **ZEROS)
            case fixture.Dense():
                return keras.layers.Dense(layer.units, use_bias=layer.bias, name=name, **ZEROS, **self._float8())
            case fixture.Convolution():
                return PaddedConvolution(layer, name=name)
            case fixture.BatchNorm():
                return keras.layers.BatchNormalization(momentum=1 - layer.momentum, epsilon=layer.epsilon, name=name)
            case fixture.LayerNorm():
                return keras.layers.LayerNormalization(epsilon=layer.epsilon, name=name)
            case fixture.Embedding():
                if path in map(str, self._tied):
                    return keras.layers.ReversibleEmbedding(
                        layer.entries, layer.width, embeddings_initializer="zeros", name=name
                    )
                return keras.layers.Embedding(layer.entries, layer.width, "zeros", name=name)
            case fixture.Positions():
                return KerasPositionTable(name=name)
            case fixture.SelfAttention():
                return SelfAttentionLayer(layer.heads, shape[-1], name=name)
            case fixture.Dropout():
                made = keras.layers.Dropout(layer.rate, seed=self._next_seed, name=name)
                self._next_seed += 1
                self.dropouts[path] = made
                return made
            case fixture.Activation():
                return keras.layers.Activation(_ACTIVATIONS[layer.kind], name=name)
            case fixture.Flatten():
                return keras.layers.Flatten(name=name)
            case fixture.MaxPool():
                return keras.layers.MaxPooling2D(layer.size, name=name)
            case fixture.Again():
                return KerasUsedAgain(self.sources[str(layer.at)][0], name=name)
            case fixture.UserFunction():
                return KerasUserFunction(name=name)
            case fixture.Residual():
                body = [self.layer(part, f"{path}.body.{i}", shape) for i, part in enumerate(layer.body)]
                return ResidualLayer(body, name=name)
            case _:
                raise TypeError(f"{type(layer).__name__} is not a layer inside a model")


def parameters_of(made: keras.layers.Layer, layer: fixture.Layer | fixture.Head) -> dict[str, keras.Variable]:
    """Canonical parameter name (without the path) to Keras variable, of one built layer."""
    match layer:
        case fixture.Head() if layer.tied is not None:
            return {}
        case fixture.Dense() | fixture.Head():
            return {"weight": made.kernel, **({"bias": made.bias} if made.bias is not None else {})}
        case fixture.Convolution():
            return {"weight": made.convolution.kernel, "bias": made.convolution.bias}
        case fixture.BatchNorm() | fixture.LayerNorm():
            return {"scale": made.gamma, "shift": made.beta}
        case fixture.Embedding():
            return {"weight": made.embeddings}
        case fixture.Positions():
            return {"weight": made.table}
        case fixture.SelfAttention():
            parts = {name: getattr(made.attention, f"{name}_dense") for name in ("query", "key", "value", "output")}
            kernels = {f"{name}.weight": dense.kernel for name, dense in parts.items()}
            return kernels | {f"{name}.bias": dense.bias for name, dense in parts.items()}
        case _:
            return {}


def buffers_of(made: keras.layers.Layer, layer: fixture.Layer | fixture.Head) -> dict[str, keras.Variable]:
    """Canonical buffer name (without the path) to Keras variable, of one built layer."""
    if isinstance(layer, fixture.BatchNorm):
        return {"mean": made.moving_mean, "variance": made.moving_variance}
    return {}


FLOAT8_OPERANDS = ("inputs", "kernel", "outputs_grad")
"""Keras' names of the operands that a float8 layer casts."""


def memory_of(layers: Mapping[str, keras.layers.Layer]) -> dict[str, keras.Variable]:
    """The variables that their gradients overwrite, as "PATH.OPERAND_PART", of float8 layers by path."""
    return {
        f"{path}.{name}_{part}": getattr(layer, f"{name}_{part}")
        for path, layer in layers.items()
        if is_float8(layer)
        for name in FLOAT8_OPERANDS
        for part in ("scale", "amax_history")
    }
