"""A fixture model as one PyTorch module, with its recomputation segments and its parameters by canonical name."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from fixtures.arrays import Array
from fixtures.layers import Again
from fixtures.model import Model
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.torch.core import ways
from frameworks.torch.core.arrays import DTYPES
from frameworks.torch.core.layers import Slot, UsedAgain, buffer_slots, build, linear_slots, parameter_slots
from frameworks.torch.core.recompute import DEFAULT, VARIANTS, SegmentCalls, segment_begins


class Network(nn.Module):
    """The layers of a fixture model; float64 heads take their features cast to float64.

    Attributes:
        built: the layers as they were built, whatever stands in their places in `layers` since.
        heads_built: the heads as they were built, by name.
        tied: places of the layers whose weight a head has too.
        calls: how often the forward of each segment has begun; compiled, this is counted in recomputed segments only.
    """

    def __init__(self, model: Model, recompute: Recompute | None = None, way: str = "") -> None:
        super().__init__()
        body = model.layers[:-1]
        shapes = {path: shape for path, _, shape in model.shapes()}
        self.layers = nn.ModuleList()
        for place, layer in enumerate(body):
            if isinstance(layer, Again):
                self.layers.append(UsedAgain(self.layers, layer.at))
            else:
                self.layers.append(build(layer, shapes[str(place)]))
        width = shapes[str(len(body))][-1]
        self.built = tuple(self.layers)
        self.heads = nn.ModuleDict()
        for head in model.heads.heads:
            dtype = DTYPES[model.parameter_format(f"{len(body)}.{head.name}.")]
            self.heads[head.name] = nn.Linear(width, head.units, bias=head.tied is None, dtype=dtype)
            if head.tied is not None:
                self.heads[head.name].weight = self.layers[head.tied].weight
        self.heads_built = dict(self.heads.items())
        self.tied = frozenset(head.tied for head in model.heads.heads if head.tied is not None)
        self._wide = frozenset(name for name, head in self.heads_built.items() if _is_wide(head))
        self.recompute, self._way = recompute, way
        self.is_reentrant = recompute is not None and VARIANTS[recompute.variant or DEFAULT]
        self.bounds = segment_bounds(len(body), recompute)
        self.calls = SegmentCalls(len(self.bounds))
        self.call_in_place()

    def call_in_place(self) -> None:
        """Makes forward passes call the present replacements of the layers."""
        self._sequence = tuple(self.layers)  # indexing a ModuleList or slicing it takes its time

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        segments = [partial(self._segment, index) for index in range(len(self.bounds))]
        if self._way == "sequential" and self.training:
            x = checkpoint_sequential(segments, len(segments), x, use_reentrant=self.is_reentrant)
        else:
            for segment in segments:
                x = self._recomputed(segment, x)
        return {name: head(x.to(torch.float64) if name in self._wide else x) for name, head in self.heads.items()}

    def _segment(self, index: int, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.calls.counts[index] += 1
        elif self.recompute is not None:
            x = segment_begins(x, self.calls.number, index)
        start, stop = self.bounds[index]
        if self.recompute is None or self.recompute.depth == 1:
            return self._run(start, stop, x)
        for a, b in inner_bounds((start, stop)):
            x = self._recomputed(partial(self._run, a, b), x)
        return x

    def _run(self, start: int, stop: int, x: torch.Tensor) -> torch.Tensor:
        for layer in self._sequence[start:stop]:
            x = layer(x)
        return x

    def _recomputed(self, function: partial[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        if self.recompute is None or not self.training:
            return function(x)
        return ways.recomputed(self._way, function, x, reentrant=self.is_reentrant)


def _is_wide(head: nn.Module) -> bool:
    return isinstance(head, nn.Linear) and head.weight.dtype == torch.float64


def parameters_by_name(model: Model, network: Network) -> dict[str, Slot]:
    """Every parameter by canonical name, in model order."""
    result: dict[str, Slot] = {}
    for index, layer in enumerate(model.layers[:-1]):
        result.update(parameter_slots(layer, network.built[index], str(index)))
    for name, head in network.heads_built.items():
        result.update(linear_slots(head, f"{len(model.layers) - 1}.{name}."))
    return {name: result[name] for name in model.parameter_shapes()}


def buffers_by_name(model: Model, network: Network) -> dict[str, Slot]:
    """Batch norm's running statistics by canonical name, in model order."""
    result: dict[str, Slot] = {}
    for index, layer in enumerate(model.layers[:-1]):
        result.update(buffer_slots(layer, network.built[index], str(index)))
    return result


def load(slots: Mapping[str, Slot], arrays: Mapping[str, Array]) -> None:
    """Writes canonical arrays into their tensors, rounded where the tensor's format is narrower.

    Raises:
        ValueError: a name is missing or a shape differs.
    """
    for name, slot in slots.items():
        if name not in arrays:
            raise ValueError(f"there is no array for {name}")
        value = slot.tensor_of(arrays[name])
        if value.shape != slot.tensor.shape:
            raise ValueError(f"{name}: {tuple(value.shape)} where {tuple(slot.tensor.shape)} is needed")
        with torch.no_grad():
            slot.tensor.copy_(value)


def cast_body(network: Network, dtype: torch.dtype) -> None:
    """Level O3: every layer and head but the float64 heads goes to `dtype`, batch norm's buffers included."""
    network.layers.to(dtype)
    for head in network.heads.values():
        if not _is_wide(head):
            head.to(dtype)
