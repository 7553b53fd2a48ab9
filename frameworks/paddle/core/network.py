"""A fixture model as one `paddle.nn` network that recomputes segments of its layers.

The same network runs in dynamic and in static mode. Its parameters are found by their canonical names.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.arrays import Array
from fixtures.layers import BatchNorm
from fixtures.model import Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.paddle.core import ways
from frameworks.paddle.core.arrays import stored
from frameworks.paddle.core.layers import build_layers, own_parameters, with_paths

REENTRANT, HOOKS = "reentrant", "non-reentrant"
"""Recomputation variants, Paddle's default first."""


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


class RecomputedSegment(paddle.nn.Layer):
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
            parts = [RecomputedSegment(Segment(half), variant) for half in halves]
        segments.append(Segment(parts))
    return [RecomputedSegment(segment, variant) for segment in segments], segments


class Network(paddle.nn.Layer):
    """A fixture model in Paddle; `forward` gives the outputs of the heads asked for, by name.

    `layers_by_path` has every layer by the paths of `Model.output_shapes`, in an order of its own.
    """

    def __init__(self, model: Model, plan: Recompute | None = None, *, sequential: bool = False) -> None:
        super().__init__()
        self._sequential = sequential and plan is not None
        *body, heads = build_layers(model.layers, model.sample)
        self.is_reentrant = plan is not None and plan.variant in (None, REENTRANT)
        self.steps, self.segments = cut(body, plan)
        self.runs = paddle.nn.LayerList(self.steps)
        self.heads = heads
        self.named = dict(_named(model, body, heads))
        self.statistics = dict(_statistics(model, body))
        self.layers_by_path = {path: layer for path, _, layer in with_paths(model.layers[:-1], body)}
        self.layers_by_path |= {f"{len(body)}.{head.name}": heads[head.name] for head in model.heads.heads}

    def assign(self, weights: Mapping[str, Array]) -> None:
        """Sets every parameter, by its canonical name."""
        for name, parameter in self.named.items():
            parameter.set_value(stored(np.asarray(weights[name])))

    def forward(self, x: Any, heads: tuple[str, ...]) -> dict[str, Any]:
        if self._sequential:
            x = ways.recomputed(self.segments, x, reentrant=self.is_reentrant)
        else:
            for step in self.runs:
                x = step(x)
        return {name: self.heads[name](x) for name in heads}


def _named(model: Model, body: list[Any], heads: Any) -> Iterator[tuple[str, Any]]:
    result = {
        f"{path}.{name}": parameter
        for path, layer, made in with_paths(model.layers, [*body, heads])
        for name, parameter in own_parameters(layer, made).items()
    }
    return ((name, result[name]) for name in model.parameter_shapes())


def _statistics(model: Model, body: list[Any]) -> Iterator[tuple[str, Any]]:
    for path, layer, made in with_paths(model.layers[:-1], body):
        if isinstance(layer, BatchNorm):
            yield f"{path}.mean", made._mean
            yield f"{path}.variance", made._variance
