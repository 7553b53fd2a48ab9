"""The fixture model as a `keras.Model`: its layers, losses and outputs, and where each canonical parameter lives.

Keras keeps dense kernels (inputs, outputs), convolution kernels (height, width, inputs, filters) and embeddings
(entries, width), as the fixtures do; only attention's projections have other shapes, (width, heads, size) and
(heads, size, width), which a reshape gives.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import keras
import numpy as np
from packaging.version import Version

from fixtures import model as fixture
from fixtures.arrays import Array
from fixtures.model import LossKind, Model, Shape
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.contract import FunctionFormat

Tensor: TypeAlias = Any
"""A tensor of the backend that Keras runs on."""
Outputs = dict[str, Tensor]
"""Outputs of layers, by the name of the Keras layer, in execution order."""
Watcher = Callable[[str, Tensor], Tensor]
"""Given the name of a Keras layer and its output, returns what the next layer takes."""

BEFORE_3_7 = Version(keras.__version__) < Version("3.7")
SEEDS_PER_RUN = 1000
ZEROS = {"kernel_initializer": "zeros"}
"""Initializer of kernels, which are loaded before a run starts; random initial values would only cost time."""
FLOAT8_OPERANDS = ("inputs", "kernel", "outputs_grad")
"""Keras' names of the operands that a float8 layer casts."""
VARIANTS = tuple(f"keras.{name}" for name in ("remat", "RematScope") if hasattr(keras, name))
"""Keras' own recomputation calls, the default one first."""

_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Context in which every layer of a model that runs passes its output to `watcher`."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def collected_outputs(zeros: Mapping[str, Tensor] = MappingProxyType({})) -> Iterator[Outputs]:
    """Collects the output of every layer that runs within the context, in graphs too.

    Args:
        zeros: zeros to add to the outputs of these layers; their gradients are the gradients of the outputs.
    """
    outputs: Outputs = {}

    def gather(name: str, output: Tensor) -> Tensor:
        outputs[name] = output + zeros[name] if name in zeros else output
        return outputs[name]

    with watched_by(gather):
        yield outputs


def run_layer(layer: keras.layers.Layer, x: Tensor, **training: bool) -> Tensor:
    """Runs one layer of the model and passes its output to the watcher, if any."""
    output = layer(x, **training)
    watcher = _WATCHER.get()
    return output if watcher is None else watcher(layer.name, output)


WEIGHTED_MEAN = "mean_with_sample_weight"
"""The sum of weighted losses divided by the sum of weights; new in Keras 3.7."""


class _WeightedMean(keras.losses.Loss):
    """The weighted mean of a loss, for Keras before 3.7, which does not have this reduction."""

    def __init__(self, items: keras.losses.Loss) -> None:
        super().__init__()
        self._items = items

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        weighted = keras.ops.sum(self._items(y_true, y_pred, sample_weight))
        return weighted / keras.ops.sum(keras.ops.cast(sample_weight, weighted.dtype))


def losses_of(model: Model, reduction: str) -> dict[str, keras.losses.Loss]:
    """The loss of each head by name, with a reduction of Keras; "none" gives the loss of each item."""
    wide = {head.name for head in model.heads.heads if head.format == "float64"}
    return {name: _loss(kind, reduction, "float64" if name in wide else None) for name, kind in model.losses}


def _loss(kind: LossKind, reduction: str, dtype: str | None) -> keras.losses.Loss:
    if reduction == WEIGHTED_MEAN and BEFORE_3_7:
        return _WeightedMean(_loss(kind, "none", dtype))
    if kind == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, dtype=dtype)
    return keras.losses.MeanSquaredError(reduction=reduction, dtype=dtype)


def batch_losses_of(model: Model) -> dict[tuple[str, bool], keras.losses.Loss]:
    """The mean loss of each head by name, for batches without or with a mask."""
    reductions = {False: "sum_over_batch_size", True: WEIGHTED_MEAN}
    return {
        (name, masked): loss
        for masked, reduction in reductions.items()
        for name, loss in losses_of(model, reduction).items()
    }


WAYS: dict[str, FunctionFormat] = {"keras.ops.custom_gradient": "input"}


@keras.ops.custom_gradient
def square(x: Tensor) -> Any:
    """The operation of `fixtures.model.UserFunction`, with its backward pass in the form that Keras documents."""

    def gradient(*upstream_alone: Tensor, upstream: Tensor | None = None) -> Tensor:
        if upstream is None:
            (upstream,) = upstream_alone
        return upstream * keras.ops.clip(2.0 * x, -1.0, 1.0)

    return x * x, gradient


class _PlainLayer(keras.layers.Layer):
    """Base of layers without variables whose output has the input's shape, unless a subclass overrides this."""

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
    """Symmetric zero padding and a convolution; Keras' "same" pads strided convolutions on one side."""

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
    """Calls an earlier layer of the model, which is built in its own place."""

    def __init__(self, used: keras.layers.Layer, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.used = used

    def compute_output_shape(self, input_shape: fixture.Shape) -> fixture.Shape:
        return tuple(self.used.compute_output_shape(input_shape))

    def call(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


class KerasUserFunction(_PlainLayer):
    """`fixtures.model.UserFunction`."""

    def call(self, inputs: Tensor) -> Tensor:
        return square(inputs)


class KerasTiedHead(_PlainLayer):
    """A head that multiplies by the transposed table of a `ReversibleEmbedding`, Keras' layer for tied weights."""

    def __init__(self, table: "keras.layers.ReversibleEmbedding", **keywords: Any) -> None:
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
    """Returns whether the layer, or a layer in it, computes differently in training and in evaluation."""
    if isinstance(layer, ResidualLayer):
        return any(tells_training(part) for part in layer.body)
    return isinstance(layer, keras.layers.Dropout | keras.layers.BatchNormalization) or is_float8(layer)


def is_float8(layer: keras.layers.Layer) -> bool:
    """Returns whether the layer multiplies in float8, and so updates its amax history in training."""
    return getattr(layer, "quantization_mode", None) == "float8"


def run_layers(layers: list[keras.layers.Layer], x: Tensor, training: bool) -> Tensor:
    """Runs consecutive layers; passes `training` to those that distinguish training from evaluation."""
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
    """Makes Keras layers under the dtype policy that is set at that time.

    Args:
        seed: seed of the first dropout layer; it is increased by 1 for each further one.
        history: length of the amax history of dense layers that train in float8; None for no float8.
        tied: indices of the embeddings whose table is also the weight of a head.
    """

    def __init__(self, seed: int, history: int | None = None, tied: Collection[int] = ()) -> None:
        self._history = history
        self._tied = tied
        self._next_seed = seed * SEEDS_PER_RUN
        self.dropouts: dict[str, keras.layers.Dropout] = {}
        self.sources: dict[str, tuple[keras.layers.Layer, fixture.Layer | fixture.Head]] = {}

    def layer(self, layer: fixture.Layer, path: str, shape: fixture.Shape) -> keras.layers.Layer:
        """The Keras layer of the fixture layer at `path`, for input samples of `shape`."""
        keras_layer = self._make(layer, path, shape)
        self.sources[path] = (keras_layer, layer)
        return keras_layer

    def head(self, head: fixture.Head, path: str) -> keras.layers.Layer:
        """The dense output layer of one head."""
        name = f"{path}-{head.name}"
        if head.tied is not None:
            keras_layer = KerasTiedHead(self.sources[str(head.tied)][0], name=name)
        else:
            format_ = {"dtype": "float64"} if head.format == "float64" else self._float8()
            keras_layer = keras.layers.Dense(head.units, name=name, **ZEROS, **format_)
        self.sources[f"{path}.{head.name}"] = (keras_layer, head)
        return keras_layer

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
                dropout = keras.layers.Dropout(layer.rate, seed=self._next_seed, name=name)
                self._next_seed += 1
                self.dropouts[path] = dropout
                return dropout
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


def parameters_of(keras_layer: keras.layers.Layer, layer: fixture.Layer | fixture.Head) -> dict[str, keras.Variable]:
    """The variables of one built layer by canonical parameter name, without the path."""
    match layer:
        case fixture.Head() if layer.tied is not None:
            return {}
        case fixture.Dense() | fixture.Head():
            bias = {} if keras_layer.bias is None else {"bias": keras_layer.bias}
            return {"weight": keras_layer.kernel, **bias}
        case fixture.Convolution():
            return {"weight": keras_layer.convolution.kernel, "bias": keras_layer.convolution.bias}
        case fixture.BatchNorm() | fixture.LayerNorm():
            return {"scale": keras_layer.gamma, "shift": keras_layer.beta}
        case fixture.Embedding():
            return {"weight": keras_layer.embeddings}
        case fixture.Positions():
            return {"weight": keras_layer.table}
        case fixture.SelfAttention():
            projections = ("query", "key", "value", "output")
            layers = {name: getattr(keras_layer.attention, f"{name}_dense") for name in projections}
            kernels = {f"{name}.weight": dense.kernel for name, dense in layers.items()}
            return kernels | {f"{name}.bias": dense.bias for name, dense in layers.items()}
        case _:
            return {}


def memory_of(layers: Mapping[str, keras.layers.Layer]) -> dict[str, keras.Variable]:
    """The float8 variables that Keras overwrites with their gradients, as "PATH.OPERAND_PART"; `layers` are by path."""
    return {
        f"{path}.{name}_{part}": getattr(layer, f"{name}_{part}")
        for path, layer in layers.items()
        if is_float8(layer)
        for name in FLOAT8_OPERANDS
        for part in ("scale", "amax_history")
    }


Begins: TypeAlias = Callable[[Tensor], object]
"""Counts a forward run of a segment; takes the segment's input."""
Counter: TypeAlias = Callable[[int | None], Begins]
"""Returns the `Begins` of the segment with this number; None for a segment inside another one."""
Wrapper: TypeAlias = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]
"""A recomputation call of the backend."""


class KerasSegment(keras.layers.Layer):
    """A run of layers, or of inner segments.

    Its `call` has no argument `training`: Keras would pass it as a keyword, at which `RematScope` raises in a graph.
    """

    def __init__(self, parts: list[keras.layers.Layer], begins: Begins, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.parts = parts
        self.begins = begins

    def build(self, input_shape: Shape) -> None:
        build_layers(self.parts, input_shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        for part in self.parts:
            input_shape = tuple(part.compute_output_shape(input_shape))
        return input_shape

    def run_parts(self, inputs: Tensor, training: bool) -> Tensor:
        """The forward pass, which recomputation repeats."""
        self.begins(inputs)
        for part in self.parts:
            inputs = run_segment(part, inputs, training)
        return inputs

    def call(self, inputs: Tensor) -> Tensor:
        return self.run_parts(inputs, False)


class TrainingSegment(KerasSegment):
    """A segment whose `call` has an argument `training`, which a layer in it needs."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return self.run_parts(inputs, training)


class RematSegment(TrainingSegment):
    """A segment in `keras.remat`. It passes `training` on, since recomputed layers do not inherit it."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return keras.remat(lambda x: self.run_parts(x, training))(inputs)


class WrappedSegment(TrainingSegment):
    """A segment in a recomputation call of the backend. It passes `training` on, as `RematSegment` does."""

    def __init__(self, wrapper: Wrapper, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.wrapper = wrapper


def run_segment(part: keras.layers.Layer, inputs: Tensor, training: bool) -> Tensor:
    """Runs a segment or a plain layer."""
    if isinstance(part, WrappedSegment):
        return part.wrapper(lambda x: part(x, training=training))(inputs)
    if isinstance(part, KerasSegment):
        return part(inputs, training=training) if isinstance(part, TrainingSegment) else part(inputs)
    return run_layers([part], inputs, training)


def _takes_training(part: keras.layers.Layer) -> bool:
    return isinstance(part, TrainingSegment) or tells_training(part)


class KerasNetwork(keras.Model):
    """The network: takes inputs (N, *sample) and returns the output of each head by name."""

    def __init__(self, segments: list[KerasSegment], heads: dict[str, keras.layers.Layer], name: str) -> None:
        super().__init__(name=name)
        self.segments = segments
        self.heads = heads

    def build(self, input_shape: Shape) -> None:
        features = build_layers(self.segments, input_shape)
        for head in self.heads.values():
            head.build(features)

    def call(self, inputs: Tensor, training: bool = False) -> dict[str, Tensor]:
        for segment in self.segments:
            inputs = run_segment(segment, inputs, training)
        return {name: run_layer(head, inputs) for name, head in self.heads.items()}


@dataclass(frozen=True)
class BuiltNetwork:
    """A built network, and its variables by canonical name.

    Attributes:
        variables: variables of parameters by canonical name, in model order.
        buffers: batch norm's moving statistics by canonical name.
        seeds: seed generators of the dropout layers by path.
        shapes: canonical shape by parameter name.
        layers: name of the Keras layer by path of the layer or head, in the order of `Model.output_shapes`.
        memory: in float8 training, the variables that Keras overwrites with their gradients.
    """

    network: KerasNetwork
    variables: dict[str, keras.Variable]
    buffers: dict[str, keras.Variable]
    seeds: dict[str, keras.random.SeedGenerator]
    shapes: dict[str, Shape]
    layers: dict[str, str]
    memory: dict[str, keras.Variable]

    @property
    def trained(self) -> dict[str, keras.Variable]:
        """The variables that are trained."""
        return {name: variable for name, variable in self.variables.items() if variable.trainable}

    def freeze(self, names: Collection[str]) -> None:
        """Freezes these variables from now on."""
        for name in names:
            self.variables[name].trainable = False

    def in_keras_shapes(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """Canonical weights in the shapes of their variables, in model order.

        Raises:
            ValueError: a weight is missing, unknown or has another number of values.
        """
        if set(weights) != set(self.variables):
            raise ValueError(f"weights of other parameters: {sorted(set(weights) ^ set(self.variables))}")
        return {name: self.native(name, weights[name]) for name in self.variables}

    def load(self, weights: Mapping[str, Array]) -> None:
        """Assigns the canonical weights.

        Raises:
            ValueError: as in `in_keras_shapes`.
        """
        for name, value in self.in_keras_shapes(weights).items():
            self.variables[name].assign(value)

    def canonical(self, name: str, value: Any) -> Array:
        """Converts a value from Keras' shape to a copy in the canonical shape."""
        return np.array(value).reshape(self.shapes[name])

    def native(self, name: str, value: Array) -> Array:
        """Converts a value from the canonical shape to Keras' shape."""
        return np.asarray(value).reshape(tuple(self.variables[name].shape))


class NetworkBuilder:
    """Builds networks of a backend.

    Args:
        counter: counts the forward runs of segments.
        wrappers: recomputation calls of the backend itself, by variant.
    """

    def __init__(self, counter: Counter, wrappers: Mapping[str, Wrapper] | None = None) -> None:
        self._counter = counter
        self._wrappers = wrappers or {}

    def build(self, model: Model, seed: int, recompute: Recompute | None, history: int | None = None) -> BuiltNetwork:
        """The network of `model` under the dtype policy that is set now, its weights not yet loaded.

        With a `history`, dense layers train in float8 with an amax history of that length.
        """
        tied = [head.tied for head in model.heads.heads if head.tied is not None]
        builder = Builder(seed, history, tied)
        top = [(path, layer, shape) for path, layer, shape in model.shapes() if "." not in path][:-1]
        segments = self._segments([builder.layer(layer, path, shape) for path, layer, shape in top], recompute)
        last = str(len(model.layers) - 1)
        network = KerasNetwork(
            segments, {head.name: builder.head(head, last) for head in model.heads.heads}, model.name
        )
        network.build((1, *model.sample))
        parameters: dict[str, keras.Variable] = {}
        buffers: dict[str, keras.Variable] = {}
        for path, (keras_layer, layer) in builder.sources.items():
            parameters |= {f"{path}.{name}": own for name, own in parameters_of(keras_layer, layer).items()}
            if isinstance(layer, fixture.BatchNorm):
                buffers |= {f"{path}.mean": keras_layer.moving_mean, f"{path}.variance": keras_layer.moving_variance}
        shapes = model.parameter_shapes()
        return BuiltNetwork(
            network,
            variables={name: parameters[name] for name in shapes},
            buffers={name: buffers[name] for name in model.buffer_shapes()},
            seeds={path: dropout.seed_generator for path, dropout in builder.dropouts.items()},
            shapes=shapes,
            layers={path: builder.sources[path][0].name for path in model.output_shapes()},
            memory=memory_of({path: keras_layer for path, (keras_layer, _) in builder.sources.items()}),
        )

    def _segments(self, layers: list[keras.layers.Layer], recompute: Recompute | None) -> list[KerasSegment]:
        if recompute is None or not layers:
            return [self._segment(layers, "body", None, 0)]
        variant = recompute.variant or (*VARIANTS, *self._wrappers)[0]
        segments = []
        for index, (start, stop) in enumerate(segment_bounds(len(layers), recompute)):
            parts = layers[start:stop]
            if recompute.depth == 2 and len(parts) > 1:
                halves = [layers[first:last] for first, last in inner_bounds((start, stop))]
                parts = [self._segment(half, f"segment-{index}-{i}", variant) for i, half in enumerate(halves)]
            segments.append(self._segment(parts, f"segment-{index}", variant, index))
        return segments

    def _segment(
        self, parts: list[keras.layers.Layer], name: str, variant: str | None, number: int | None = None
    ) -> KerasSegment:
        """A segment of a recomputation variant. In a `RematScope` it has no weights, since its call does not cast them.

        Its parts are made outside the scope, so that recomputation runs their `__call__`.
        """
        plain = TrainingSegment if any(_takes_training(part) for part in parts) else KerasSegment
        begins = self._counter(number)
        if variant is None:
            return plain(parts, begins, name=name)
        if variant in self._wrappers:
            return WrappedSegment(self._wrappers[variant], parts, begins, name=name)
        if variant == "keras.remat":
            return RematSegment(parts, begins, name=name)
        with keras.RematScope(mode="full"):
            return plain(parts, begins, name=name)
