"""The fixture model as a `keras.Model`: runs of layers, recomputed or not, then the heads."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Shape
from fixtures.model import Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.keras_common.layer_outputs import Tensor, run_layer
from frameworks.keras_common.layers import (
    Builder,
    buffers_of,
    build_layers,
    memory_of,
    parameters_of,
    run_layers,
    tells_training,
)

VARIANTS = tuple(f"keras.{name}" for name in ("remat", "RematScope") if hasattr(keras, name))
"""Keras' own recomputation calls, the default one first."""

Begins: TypeAlias = Callable[[Tensor], object]
"""Counts a forward of a segment, given the segment's input."""
Counter: TypeAlias = Callable[[int | None], Begins]
"""The `Begins` of the segment with a number; None for a segment inside another one."""
Wrapper: TypeAlias = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]
"""A recomputation call of the backend."""


class KerasSegment(keras.layers.Layer):
    """A run of layers, or of inner segments.

    It takes no argument `training`, which Keras would hand on as a keyword, for `RematScope` raises at one in a graph.
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
    """A segment with an argument `training`, which a layer in it needs."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return self.run_parts(inputs, training)


class RematSegment(TrainingSegment):
    """A segment within `keras.remat`, with an argument `training`: recomputed layers do not inherit it."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return keras.remat(lambda x: self.run_parts(x, training))(inputs)


class WrappedSegment(TrainingSegment):
    """A segment that its caller wraps in a call of the backend, and gives `training` for the same reason."""

    def __init__(self, wrapper: Wrapper, *given: Any, **keywords: Any) -> None:
        super().__init__(*given, **keywords)
        self.wrapper = wrapper


def run_segment(part: keras.layers.Layer, inputs: Tensor, training: bool) -> Tensor:
    """A segment or a plain layer."""
    if isinstance(part, WrappedSegment):
        return part.wrapper(lambda x: part(x, training=training))(inputs)
    if isinstance(part, KerasSegment):
        return part(inputs, training=training) if isinstance(part, TrainingSegment) else part(inputs)
    return run_layers([part], inputs, training)


def _takes_training(part: keras.layers.Layer) -> bool:
    return isinstance(part, TrainingSegment) or tells_training(part)


class KerasNetwork(keras.Model):
    """Inputs (N, *sample) to a mapping from head name to output."""

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
        variables: those of parameters by canonical name, in model order.
        buffers: batch norm's moving statistics by canonical name.
        seeds: seed generators of the dropout layers by path.
        shapes: canonical shape by parameter name.
        layers: name of the Keras layer by path of the layer or head, in the order of `Model.output_shapes`.
        memory: variables that their gradients overwrite, in float8 training.
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
        """Leaves variables untrained from now on."""
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
            ValueError: see `in_keras_shapes`.
        """
        for name, value in self.in_keras_shapes(weights).items():
            self.variables[name].assign(value)

    def canonical(self, name: str, value: Any) -> Array:
        """A value in Keras' shape as a copy in the canonical shape."""
        return np.array(value).reshape(self.shapes[name])

    def native(self, name: str, value: Array) -> Array:
        """A value in the canonical shape as one in Keras' shape."""
        return np.asarray(value).reshape(tuple(self.variables[name].shape))


class NetworkBuilder:
    """Builds networks of a backend.

    Args:
        counter: counts the forwards of segments.
        wrappers: recomputation calls of the backend itself, by variant.
    """

    def __init__(self, counter: Counter, wrappers: Mapping[str, Wrapper] | None = None) -> None:
        self._counter = counter
        self._wrappers = wrappers or {}

    def build(self, model: Model, seed: int, recompute: Recompute | None, history: int | None = None) -> BuiltNetwork:
        """The network of `model` under the dtype policy that is set now, its weights not yet loaded.

        With a `history` dense layers train in float8, by scales that follow as many steps.
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
        result = [(path, *source) for path, source in builder.sources.items()]
        parameters = {f"{p}.{n}": v for p, made, layer in result for n, v in parameters_of(made, layer).items()}
        buffers = {f"{p}.{n}": v for p, made, layer in result for n, v in buffers_of(made, layer).items()}
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
        """A segment of a variant; in a `RematScope` it has no weights of its own, for its call would not cast them.

        Its parts, made outside the scope, enter their own `__call__` when they are run again.
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
