"""The fixture model in PyTorch, channels-last between layers: layers, losses, recomputed segments, traces."""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint_sequential

from fixtures.arrays import Array
from fixtures.model import (
    Activation,
    Again,
    Batch,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    LossKind,
    MaxPool,
    Model,
    Positions,
    Residual,
    SelfAttention,
    Shape,
    UserFunction,
    output_shape,
)
from fixtures.recipe import Recompute
from frameworks.base import inner_bounds, segment_bounds
from frameworks.torch.core import settings, ways
from frameworks.torch.core.operations import VARIANTS, WAYS, make_function
from frameworks.torch.core.settings import DTYPES, to_array, to_tensor

IGNORED = -100
"""The label that `cross_entropy` ignores by default."""
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
_PROJECTIONS = ("query", "key", "value", "output")
_NUMBERS = count()
_OF_NUMBER: WeakValueDictionary[int, "SegmentCalls"] = WeakValueDictionary()
"""The counts of segments by number, through which an operator in a compiled graph finds them."""


@dataclass(frozen=True)
class Slot:
    """The storage of a canonical array: a tensor, and the permutation of axes from canonical to its layout."""

    tensor: torch.Tensor
    permutation: tuple[int, ...] | None = None

    def to_canonical(self, tensor: torch.Tensor) -> Array:
        """A tensor of this slot's layout as a canonical array in its own format."""
        array = to_array(tensor)
        if self.permutation is None or array.ndim != len(self.permutation):
            return array
        return np.ascontiguousarray(array.transpose(np.argsort(self.permutation)))

    def times(self, gradient: Array) -> torch.Tensor:
        """Parameter times gradient, in float32 or wider like losses, so that no loss scale makes it overflow."""
        wide = torch.promote_types(self.tensor.dtype, torch.float32)
        return self.tensor.to(wide) * self.tensor_of(gradient, wide)

    def tensor_of(self, array: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The canonical array as a tensor of this slot's layout, device and format (or `dtype`)."""
        own = array if self.permutation is None else array.transpose(self.permutation)
        return to_tensor(own, str(self.tensor.device), dtype or self.tensor.dtype)


class ChannelsLast(nn.Module):
    """Gives a module that wants channels second its input by permuted views; `run_segment` sees (N, C, ...)."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wrapped(x.movedim(-1, 1)).movedim(1, -1)


class PositionTable(nn.Module):
    """x + table; the table is (length, width)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class Attention(nn.Module):
    """Self-attention of (N, T, D) by `scaled_dot_product_attention`, with a linear layer for each projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.ModuleDict({name: nn.Linear(width, width) for name in _PROJECTIONS})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.projections[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in _PROJECTIONS[:3]
        )
        mixed = scaled_dot_product_attention(query, key, value)
        return self.projections["output"](mixed.transpose(1, 2).flatten(-2))


class ResidualBody(nn.Module):
    """x + body(x)."""

    def __init__(self, body: list[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class WideLinear(nn.Linear):
    """A linear layer in float32: a region without autocast."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


class UsedAgain(nn.Module):
    """Calls a layer that another index of the network owns; that layer is not registered as a child of this module."""

    def __init__(self, layers: nn.ModuleList, at: int) -> None:
        super().__init__()
        self._layers = (layers,)
        self._at = at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._layers[0][self._at](x)


class UserFunctionLayer(nn.Module):
    """`fixtures.model.UserFunction`, written in one of `WAYS`."""

    def __init__(self, way: str | None) -> None:
        super().__init__()
        self.functions = {device: make_function(way or next(iter(WAYS)), device) for device in settings.available()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.functions[x.device.type](x)


def build(layer: Layer, shape: Shape) -> nn.Module:
    """The module of a layer for samples of `shape` (no batch axis); its weights are PyTorch's own draws.

    Raises:
        TypeError: this adapter does not know the kind of layer.
    """
    match layer:
        case Dense(units=units, bias=bias, wide=True):
            return WideLinear(shape[-1], units, bias=bias)
        case Dense(units=units, bias=bias):
            return nn.Linear(shape[-1], units, bias=bias)
        case Convolution():
            convolution = nn.Conv2d(shape[-1], layer.filters, layer.size, stride=layer.stride, padding=layer.padding)
            return ChannelsLast(convolution)
        case BatchNorm(momentum=momentum, epsilon=epsilon):
            kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
            return ChannelsLast(kind(shape[-1], eps=epsilon, momentum=momentum))
        case LayerNorm(epsilon=epsilon):
            return nn.LayerNorm(shape[-1], eps=epsilon)
        case Embedding(entries=entries, width=width):
            return nn.Embedding(entries, width)
        case Positions(length=length):
            return PositionTable(length, shape[-1])
        case SelfAttention(heads=heads):
            return Attention(shape[-1], heads)
        case Dropout(rate=rate):
            return nn.Dropout(rate)
        case Activation(kind=name):
            return _ACTIVATIONS[name]()
        case Flatten():
            return nn.Flatten()
        case MaxPool(size=size):
            return ChannelsLast(nn.MaxPool2d(size))
        case UserFunction(way=way):
            return UserFunctionLayer(way)
        case Residual(body=body):
            parts = []
            for part in body:
                parts.append(build(part, shape))
                shape = output_shape(part, shape)
            return ResidualBody(parts)
        case _:
            raise TypeError(f"no PyTorch module for {type(layer).__name__}")


def linear_slots(linear: nn.Module, prefix: str = "") -> dict[str, Slot]:
    """Slots of a linear layer, whose weight PyTorch holds as (outputs, inputs)."""
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"{type(linear).__name__} is not a linear layer")
    slots = {f"{prefix}weight": Slot(linear.weight, (1, 0))}
    return slots if linear.bias is None else {**slots, f"{prefix}bias": Slot(linear.bias)}


def parameter_slots(layer: Layer, module: nn.Module, path: str) -> dict[str, Slot]:
    """The parameters of `layer` and of the layers inside it by canonical name, as `build` made them."""
    match layer, module:
        case Dense(), nn.Linear():
            return linear_slots(module, f"{path}.")
        case Convolution(), ChannelsLast(wrapped=nn.Conv2d(weight=weight, bias=bias)):
            return {f"{path}.weight": Slot(weight, (3, 2, 0, 1)), f"{path}.bias": Slot(bias)}
        case BatchNorm(), ChannelsLast(wrapped=norm):
            return {f"{path}.scale": Slot(norm.weight), f"{path}.shift": Slot(norm.bias)}
        case LayerNorm(), nn.LayerNorm():
            return {f"{path}.scale": Slot(module.weight), f"{path}.shift": Slot(module.bias)}
        case Embedding(), nn.Embedding():
            return {f"{path}.weight": Slot(module.weight)}
        case Positions(), PositionTable():
            return {f"{path}.weight": Slot(module.table)}
        case SelfAttention(), Attention():
            parts = [linear_slots(module.projections[name], f"{path}.{name}.") for name in _PROJECTIONS]
            return {name: slot for slots in parts for name, slot in slots.items()}
        case Residual(body=body), ResidualBody():
            return {
                name: slot
                for index, part in enumerate(body)
                for name, slot in parameter_slots(part, module.body[index], f"{path}.body.{index}").items()
            }
        case _:
            return {}


def buffer_slots(layer: Layer, module: nn.Module, path: str) -> dict[str, Slot]:
    """Batch norm's running statistics of `layer` and of the layers inside it by canonical name."""
    match layer, module:
        case BatchNorm(), ChannelsLast(wrapped=norm):
            return {f"{path}.mean": Slot(norm.running_mean), f"{path}.variance": Slot(norm.running_var)}
        case Residual(body=body), ResidualBody():
            return {
                name: slot
                for index, part in enumerate(body)
                for name, slot in buffer_slots(part, module.body[index], f"{path}.body.{index}").items()
            }
        case _:
            return {}


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """A micro-batch as tensors: labels outside the mask are `IGNORED`, other targets have their head's format."""

    inputs: torch.Tensor
    targets: Mapping[str, torch.Tensor]
    items: int

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor of the micro-batch."""
        yield self.inputs
        yield from self.targets.values()


def load_batch(model: Model, batch: Batch, device: str, dtype: torch.dtype | None = None) -> DeviceBatch:
    """The micro-batch on `device`, its floating inputs rounded to `dtype` if one is given."""
    kinds = dict(model.losses)
    inputs = _read(batch.inputs, device, None if model.integer_inputs else dtype)
    targets: dict[str, torch.Tensor] = {}
    for name, array in batch.targets.items():
        if kinds[name] == "cross_entropy":
            labels = array if batch.mask is None else np.where(batch.mask == 0, IGNORED, array)
            targets[name] = _read(labels, device, torch.int64)
        else:
            wanted = DTYPES[model.parameter_format(f"{len(model.layers) - 1}.{name}.")]
            targets[name] = _read(array, device, wanted)
    return DeviceBatch(inputs, targets, batch.items)


def _read(array: Array, device: str, dtype: torch.dtype | None) -> torch.Tensor:
    """The array as a tensor, which shares its memory where it can: nothing writes to a micro-batch."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.require(array, requirements=("C", "W"))
    return torch.from_numpy(array).to(device=device, dtype=dtype)


def item_loss_sums(
    kinds: tuple[tuple[str, LossKind], ...], outputs: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """For each head that has a target, in model order: the sum of the losses of the micro-batch's items."""
    return [_item_loss_sum(kind, outputs[name], targets[name]) for name, kind in kinds if name in targets]


def _item_loss_sum(kind: LossKind, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if kind == "cross_entropy":
        return functional.cross_entropy(output.flatten(0, -2), target.flatten(), ignore_index=IGNORED, reduction="sum")
    return functional.mse_loss(output, target, reduction="sum") / output.shape[-1]


def item_losses(
    kinds: tuple[tuple[str, LossKind], ...], outputs: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The loss of each item of a micro-batch, (items,), summed over the heads that have a target."""
    losses = [_item_losses(kind, outputs[name], targets[name]) for name, kind in kinds if name in targets]
    return sum(losses[1:], losses[0])


def _item_losses(kind: LossKind, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if kind == "cross_entropy":
        labels = target.flatten()
        losses = functional.cross_entropy(output.flatten(0, -2), labels, ignore_index=IGNORED, reduction="none")
        return losses[labels != IGNORED]
    return functional.mse_loss(output, target, reduction="none").mean(-1)


class SegmentCalls:
    """A count for each segment; `segment_begins` finds this object by its `number`."""

    def __init__(self, segments: int) -> None:
        self.counts = [0] * segments
        self.number = next(_NUMBERS)
        _OF_NUMBER[self.number] = self


@torch.library.custom_op("conformance::segment_begins", mutates_args=())
def segment_begins(x: torch.Tensor, number: int, index: int) -> torch.Tensor:
    """A copy of a segment's input. Each run of this operator, also in a compiled graph, counts the segment."""
    _OF_NUMBER[number].counts[index] += 1
    return x.clone()


@segment_begins.register_fake
def _(x: torch.Tensor, number: int, index: int) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


segment_begins.register_autograd(lambda _, gradient: (gradient, None, None))


class Network(nn.Module):
    """The layers of a fixture model; float64 heads take their features cast to float64.

    Attributes:
        built: the layers as they were built; wrappers may have replaced them in `layers`.
        heads_built: the heads as they were built, by name.
        tied: indices of the layers that share their weight with a head.
        calls: number of forwards begun by each segment; compiled modes count recomputed segments only.
    """

    def __init__(self, model: Model, recompute: Recompute | None = None, way: str = "") -> None:
        super().__init__()
        body = model.layers[:-1]
        shapes = {path: shape for path, _, shape in model.shapes()}
        self.layers = nn.ModuleList()
        for index, layer in enumerate(body):
            if isinstance(layer, Again):
                self.layers.append(UsedAgain(self.layers, layer.at))
            else:
                self.layers.append(build(layer, shapes[str(index)]))
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
        self.is_reentrant = recompute is not None and VARIANTS[recompute.variant or next(iter(VARIANTS))]
        self.bounds = segment_bounds(len(body), recompute)
        self.calls = SegmentCalls(len(self.bounds))
        self.call_in_place()

    def call_in_place(self) -> None:
        """Makes forward passes call the present replacements of the layers."""
        self._sequence = tuple(self.layers)  # a tuple: indexing and slicing a ModuleList are slow

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        segments = [partial(self._segment, index) for index in range(len(self.bounds))]
        if self._way == "sequential" and self.training:
            x = checkpoint_sequential(segments, len(segments), x, use_reentrant=self.is_reentrant)
        else:
            for segment in segments:
                x = self._recompute(segment, x)
        return {name: head(x.to(torch.float64) if name in self._wide else x) for name, head in self.heads.items()}

    def _segment(self, index: int, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.calls.counts[index] += 1
        elif self.recompute is not None:
            x = segment_begins(x, self.calls.number, index)
        start, stop = self.bounds[index]
        if self.recompute is None or self.recompute.depth == 1:
            return self._run(start, stop, x)
        for first, end in inner_bounds((start, stop)):
            x = self._recompute(partial(self._run, first, end), x)
        return x

    def _run(self, start: int, stop: int, x: torch.Tensor) -> torch.Tensor:
        for layer in self._sequence[start:stop]:
            x = layer(x)
        return x

    def _recompute(self, function: partial[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        if self.recompute is None or not self.training:
            return function(x)
        return ways.recompute_function(self._way, function, x, reentrant=self.is_reentrant)


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
    """Level O3: casts every layer and head except float64 heads to `dtype`, including batch norm's buffers."""
    network.layers.to(dtype)
    for head in network.heads.values():
        if not _is_wide(head):
            head.to(dtype)


def modules_by_path(model: Model, network: Network, heads: Container[str]) -> dict[str, nn.Module]:
    """The module of every layer by its path, in the order of the forward pass; the heads in `heads` are last."""
    modules = dict(_modules_of(model.layers[:-1], network.built, ""))
    last = len(model.layers) - 1
    return modules | {f"{last}.{name}": head for name, head in network.heads_built.items() if name in heads}


def _modules_of(
    layers: tuple[Layer, ...], modules: Iterable[nn.Module], prefix: str
) -> Iterator[tuple[str, nn.Module]]:
    for index, (layer, module) in enumerate(zip(layers, modules, strict=True)):
        if isinstance(layer, Residual) and isinstance(module, ResidualBody):
            yield from _modules_of(layer.body, module.body, f"{prefix}{index}.body.")
        yield f"{prefix}{index}", module


class TracedTensors:
    """Outputs of layers and the gradients of these outputs, by path, summed over backward passes."""

    def __init__(self) -> None:
        self.outputs: dict[str, Array] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self._inside: set[nn.Module] = set()

    @contextmanager
    def watching(self, modules: dict[str, nn.Module]) -> Iterator[None]:
        """Records the outputs of these modules, and their gradients, within the context."""
        handles = [module.register_forward_hook(self._hook(path)) for path, module in modules.items()]
        again = [module for module in modules.values() if isinstance(module, UsedAgain)]
        handles += [module.register_forward_pre_hook(lambda module, _: self._inside.add(module)) for module in again]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, path: str) -> Any:
        def take(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self._inside.discard(module)
            if self._inside:
                return  # inside `UsedAgain`, which has a path of its own
            if path not in self.outputs:  # keep the first run: recomputation repeats it
                self.outputs[path] = to_array(output)
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_()  # before the first parameter
            if output.requires_grad:
                output.register_hook(lambda gradient: self._add(path, gradient))

        return take

    def _add(self, path: str, gradient: torch.Tensor) -> None:
        former = self.gradients.get(path)
        self.gradients[path] = gradient.clone() if former is None else former + gradient
