"""The fixture model as a `keras.Model`: runs of layers, recomputed or not, then the heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Shape
from fixtures.model import Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.keras_parts.layers import Builder, buffers_of, build_layers, parameters_of, run_layers, tells_training
from frameworks.keras_parts.watching import run_layer

VARIANTS = tuple(f"keras.{name}" for name in ("remat", "RematScope") if hasattr(keras, name))

_BEGUN: ContextVar[Callable[[int], object] | None] = ContextVar("begun", default=None)


@contextmanager
def counting(begun: Callable[[int], object]) -> Iterator[None]:
    """Within the context, traced passes call `begun` with a segment's number whenever its forward begins."""
    token = _BEGUN.set(begun)
    try:
        yield
    finally:
        _BEGUN.reset(token)


class Segment(keras.layers.Layer):
    """A run of layers, or of inner segments, which have no number."""

    def __init__(self, parts: list[keras.layers.Layer], number: int | None, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.parts = parts
        self.number = number

    def build(self, input_shape: Shape) -> None:
        build_layers(self.parts, input_shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        for part in self.parts:
            input_shape = tuple(part.compute_output_shape(input_shape))
        return input_shape

    def forward(self, inputs: jax.Array, training: bool) -> jax.Array:
        """The forward pass, which recomputation repeats."""
        begun = _BEGUN.get()
        if begun is not None and self.number is not None:
            jax.debug.callback(partial(_told, begun, self.number), inputs.ravel()[0])
        for part in self.parts:
            inputs = run_segment(part, inputs, training)
        return inputs

    def call(self, inputs: jax.Array) -> jax.Array:
        return self.forward(inputs, False)


def _told(begun: Callable[[int], object], number: int, _: Any) -> None:
    begun(number)


class TrainingSegment(Segment):
    """A segment with an argument `training`, which a layer in it needs."""

    def call(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        return self.forward(inputs, training)


class RematSegment(TrainingSegment):
    """A segment inside `keras.remat`."""

    def call(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        return keras.remat(lambda x: self.forward(x, training))(inputs)


def run_segment(part: keras.layers.Layer, inputs: jax.Array, training: bool) -> jax.Array:
    """A segment or a plain layer."""
    if isinstance(part, Segment):
        return part(inputs, training=training) if isinstance(part, TrainingSegment) else part(inputs)
    return run_layers([part], inputs, training)


def _is_told(part: keras.layers.Layer) -> bool:
    return isinstance(part, TrainingSegment) or tells_training(part)


def _segment(parts: list[keras.layers.Layer], name: str, variant: str | None, number: int | None = None) -> Segment:
    """A segment of a variant; a layer that is made in a `RematScope` is recomputed."""
    plain = TrainingSegment if any(_is_told(part) for part in parts) else Segment
    match variant:
        case None:
            return plain(parts, number, name=name)
        case "keras.remat":
            return RematSegment(parts, number, name=name)
        case _:
            with keras.RematScope(mode="full"):
                return plain(parts, number, name=name)


def _segments(layers: list[keras.layers.Layer], recompute: Recompute | None) -> list[Segment]:
    if recompute is None or not layers:
        return [_segment(layers, "body", None, 0)]
    variant = recompute.variant or VARIANTS[0]
    segments = []
    for index, (start, stop) in enumerate(segment_bounds(len(layers), recompute)):
        parts = layers[start:stop]
        if recompute.depth == 2 and len(parts) > 1:
            halves = [layers[first:last] for first, last in inner_bounds((start, stop))]
            parts = [_segment(half, f"segment-{index}-{i}", variant) for i, half in enumerate(halves)]
        segments.append(_segment(parts, f"segment-{index}", variant, index))
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

    def call(self, inputs: jax.Array, training: bool = False) -> dict[str, jax.Array]:
        for segment in self.segments:
            inputs = run_segment(segment, inputs, training)
        return {name: run_layer(head, inputs) for name, head in self.heads.items()}


@dataclass(frozen=True)
class BuiltNetwork:
    """A built network, and its variables by canonical name.

    Attributes:
        parameters: place among the network's trainable variables, by canonical name, in model order.
        buffers: place of batch norm's moving statistics among the others, by canonical name.
        seeds: place of the seed generators' states among the others, by the path of the dropout layer.
        shapes: canonical shape by parameter name.
        layers: name of the Keras layer by path of the layer or head, in the order of `Model.output_shapes`.
    """

    network: Network
    parameters: dict[str, int]
    buffers: dict[str, int]
    seeds: dict[str, int]
    shapes: dict[str, Shape]
    layers: dict[str, str]

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """Trainable variables by canonical name, in model order."""
        return {name: self.network.trainable_variables[place] for name, place in self.parameters.items()}

    def canonical(self, name: str, value: Any) -> Array:
        """A value in Keras' shape as a copy in the canonical shape."""
        return np.array(value).reshape(self.shapes[name])

    def native(self, weights: Mapping[str, Array]) -> list[Array]:
        """Canonical weights in the shapes, formats and order of the network's trainable variables.

        Raises:
            ValueError: a weight is missing, unknown or has another number of values.
        """
        if set(weights) != set(self.parameters):
            raise ValueError(f"weights of other parameters: {sorted(set(weights) ^ set(self.parameters))}")
        found = {
            self.parameters[name]: np.asarray(weights[name]).reshape(variable.shape).astype(jnp.dtype(variable.dtype))
            for name, variable in self.variables.items()
        }
        return [found[place] for place in range(len(found))]


def build(model: Model, seed: int, recompute: Recompute | None) -> BuiltNetwork:
    """The network of `model` under the dtype policy that is set now, its kernels zero."""
    builder = Builder(seed)
    top = [(path, layer, shape) for path, layer, shape in model.shapes() if "." not in path][:-1]
    segments = _segments([builder.layer(layer, path, shape) for path, layer, shape in top], recompute)
    last = str(len(model.layers) - 1)
    network = Network(segments, {head.name: builder.head(head, last) for head in model.heads.heads}, "network")
    network.build((1, *model.sample))
    found = [(path, *source) for path, source in builder.sources.items()]
    parameters = {f"{p}.{n}": v for p, made, layer in found for n, v in parameters_of(made, layer).items()}
    buffers = {f"{p}.{n}": v for p, made, layer in found for n, v in buffers_of(made, layer).items()}
    trained = {id(variable): place for place, variable in enumerate(network.trainable_variables)}
    others = {id(variable): place for place, variable in enumerate(network.non_trainable_variables)}
    shapes = model.parameter_shapes()
    return BuiltNetwork(
        network,
        {name: trained[id(parameters[name])] for name in shapes},
        {name: others[id(buffers[name])] for name in model.buffer_shapes()},
        {path: others[id(dropout.seed_generator.state)] for path, dropout in builder.dropouts.items()},
        shapes,
        {path: builder.sources[path][0].name for path in model.output_shapes()},
    )
