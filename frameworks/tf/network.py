"""The fixture model as a `keras.Model`: runs of layers, recomputed or not, then the heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.layers import Shape
from fixtures.model import Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.keras_parts.watching import run_layer
from frameworks.tf.float8_training import memory_of
from frameworks.tf.layers import Builder, buffers_of, build_layers, parameters_of, run_layers, tells_training

VARIANTS = (*(f"keras.{name}" for name in ("remat", "RematScope") if hasattr(keras, name)), "tf.recompute_grad")


class Segment(keras.layers.Layer):
    """A run of layers, or of inner segments; counts how often its forward began, inside graphs too.

    It takes no argument `training`, which Keras would hand on as a keyword, for `RematScope` raises at one in a graph.
    """

    def __init__(self, parts: list[keras.layers.Layer], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.parts = parts
        self.calls = tf.Variable(0, trainable=False, dtype=tf.int64)

    def build(self, input_shape: Shape) -> None:
        build_layers(self.parts, input_shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        for part in self.parts:
            input_shape = tuple(part.compute_output_shape(input_shape))
        return input_shape

    def forward(self, inputs: tf.Tensor, training: bool) -> tf.Tensor:
        """The forward pass, which recomputation repeats."""
        self.calls.assign_add(1)
        for part in self.parts:
            inputs = run_segment(part, inputs, training)
        return inputs

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.forward(inputs, False)


class TrainingSegment(Segment):
    """A segment with an argument `training`, which a layer in it needs."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.forward(inputs, training)


class RematSegment(TrainingSegment):
    """A segment within `keras.remat`, with an argument `training`: recomputed layers do not inherit it."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return keras.remat(lambda x: self.forward(x, training))(inputs)


class RecomputeGradSegment(TrainingSegment):
    """A segment that its caller wraps in `tf.recompute_grad`, and gives `training` for the same reason."""


def run_segment(part: keras.layers.Layer, inputs: tf.Tensor, training: bool) -> tf.Tensor:
    """A segment or a plain layer."""
    if isinstance(part, RecomputeGradSegment):
        return tf.recompute_grad(lambda x: part(x, training=training))(inputs)
    if isinstance(part, Segment):
        return part(inputs, training=training) if isinstance(part, TrainingSegment) else part(inputs)
    return run_layers([part], inputs, training)


def _told(part: keras.layers.Layer) -> bool:
    return isinstance(part, TrainingSegment) or tells_training(part)


def _segment(parts: list[keras.layers.Layer], name: str, variant: str | None) -> Segment:
    """A segment of a variant; in a `RematScope` it has no weights of its own, for its call would not cast them again.

    Its parts, made outside the scope, enter their own `__call__` when they are run again.
    """
    plain = TrainingSegment if any(_told(part) for part in parts) else Segment
    match variant:
        case None:
            return plain(parts, name=name)
        case "keras.remat":
            return RematSegment(parts, name=name)
        case "tf.recompute_grad":
            return RecomputeGradSegment(parts, name=name)
        case _:
            with keras.RematScope(mode="full"):
                return plain(parts, name=name)


def _segments(layers: list[keras.layers.Layer], recompute: Recompute | None) -> list[Segment]:
    if recompute is None or not layers:
        return [_segment(layers, "body", None)]
    variant = recompute.variant or VARIANTS[0]
    segments = []
    for index, (start, stop) in enumerate(segment_bounds(len(layers), recompute)):
        parts = layers[start:stop]
        if recompute.depth == 2 and len(parts) > 1:
            halves = [layers[first:last] for first, last in inner_bounds((start, stop))]
            parts = [_segment(half, f"segment-{index}-{i}", variant) for i, half in enumerate(halves)]
        segments.append(_segment(parts, f"segment-{index}", variant))
    return segments


class Network(keras.Model):
    """Inputs (N, *sample) to a mapping from head name to output."""

    def __init__(self, segments: list[Segment], heads: dict[str, keras.layers.Layer], name: str) -> None:
        super().__init__(name=name)
        self.segments = segments
        self.heads = heads

    def build(self, input_shape: Shape) -> None:
        features = build_layers(self.segments, input_shape)
        for head in self.heads.values():
            head.build(features)

    def call(self, inputs: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        for segment in self.segments:
            inputs = run_segment(segment, inputs, training)
        return {name: run_layer(head, inputs) for name, head in self.heads.items()}


@dataclass(frozen=True)
class BuiltNetwork:
    """A built network, and its variables by canonical name.

    Attributes:
        variables: trainable variables by canonical name, in model order.
        buffers: batch norm's moving statistics by canonical name.
        seeds: seed generators of the dropout layers by path.
        shapes: canonical shape by parameter name.
        layers: name of the Keras layer by path of the layer or head, in the order of `Model.output_shapes`.
        memory: variables that their gradients overwrite, in float8 training.
    """

    network: Network
    variables: dict[str, keras.Variable]
    buffers: dict[str, keras.Variable]
    seeds: dict[str, keras.random.SeedGenerator]
    shapes: dict[str, Shape]
    layers: dict[str, str]
    memory: dict[str, keras.Variable]

    def load(self, weights: Mapping[str, Array]) -> None:
        """Assigns the canonical weights.

        Raises:
            ValueError: a weight is missing, unknown or has another number of values.
        """
        if set(weights) != set(self.variables):
            raise ValueError(f"weights of other parameters: {sorted(set(weights) ^ set(self.variables))}")
        for name, variable in self.variables.items():
            variable.assign(np.asarray(weights[name]).reshape(variable.shape))

    def canonical(self, name: str, value: Array) -> Array:
        """A value in Keras' shape as a copy in the canonical shape."""
        return np.array(value).reshape(self.shapes[name])

    def native(self, name: str, value: Array) -> Array:
        """A value in the canonical shape as one in Keras' shape."""
        return np.asarray(value).reshape(tuple(self.variables[name].shape))


def build(model: Model, seed: int, recompute: Recompute | None, history: int | None = None) -> BuiltNetwork:
    """The network of `model` under the dtype policy that is set now, its weights not yet loaded.

    With a `history` dense layers train in float8, by scales that follow as many steps.
    """
    builder = Builder(seed, history)
    top = [(path, layer, shape) for path, layer, shape in model.shapes() if "." not in path][:-1]
    segments = _segments([builder.layer(layer, path, shape) for path, layer, shape in top], recompute)
    last = str(len(model.layers) - 1)
    network = Network(segments, {head.name: builder.head(head, last) for head in model.heads.heads}, model.name)
    network.build((1, *model.sample))
    found = [(path, *source) for path, source in builder.sources.items()]
    parameters = {f"{p}.{n}": v for p, made, layer in found for n, v in parameters_of(made, layer).items()}
    buffers = {f"{p}.{n}": v for p, made, layer in found for n, v in buffers_of(made, layer).items()}
    shapes = model.parameter_shapes()
    return BuiltNetwork(
        network,
        {name: parameters[name] for name in shapes},
        {name: buffers[name] for name in model.buffer_shapes()},
        {path: dropout.seed_generator for path, dropout in builder.dropouts.items()},
        shapes,
        {path: builder.sources[path][0].name for path in model.output_shapes()},
        memory_of({path: made for path, (made, _) in builder.sources.items()}),
    )
