"""Fixture layers as PyTorch modules, channels-last at every border, and their parameters by canonical name."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from fixtures.arrays import Array
from fixtures.layers import (
    Activation,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
    Shape,
    UserFunction,
    output_shape,
)
from frameworks.torch.core.arrays import to_array, to_tensor
from frameworks.torch.core.functions import UserFunctionLayer

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
_PROJECTIONS = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Slot:
    """Where a canonical array lives: a tensor, and the permutation of axes that leads from canonical to its layout."""

    tensor: torch.Tensor
    permutation: tuple[int, ...] | None = None

    def to_layout(self, array: Array) -> Array:
        """The canonical array in the tensor's layout."""
        return array if self.permutation is None else array.transpose(self.permutation)

    def to_canonical(self, tensor: torch.Tensor) -> Array:
        """A tensor of this slot's layout as a canonical array in its own format."""
        array = to_array(tensor)
        if self.permutation is None or array.ndim != len(self.permutation):
            return array
        return np.ascontiguousarray(array.transpose(np.argsort(self.permutation)))

    def times(self, gradient: Array) -> torch.Tensor:
        """Parameter times gradient, in float32 or wider as losses are, so that no scale of the loss overflows."""
        wide = torch.promote_types(self.tensor.dtype, torch.float32)
        return self.tensor.to(wide) * self.tensor_of(gradient, wide)

    def tensor_of(self, array: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The canonical array as a tensor of this slot's layout, device and format (or `dtype`)."""
        return to_tensor(self.to_layout(array), str(self.tensor.device), dtype or self.tensor.dtype)


class ChannelsLast(nn.Module):
    """Gives a module that wants channels second its input by permuted views; `wrapped` sees (N, C, ...)."""

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
    """Calls the layer that stands at a place of the network; it is that one's module, and no child of this one."""

    def __init__(self, layers: nn.ModuleList, at: int) -> None:
        super().__init__()
        self._layers = (layers,)
        self._at = at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._layers[0][self._at](x)


def build(layer: Layer, shape: Shape) -> nn.Module:
    """The module of a layer for samples of `shape` (no batch axis); its weights are PyTorch's own draws.

    Raises:
        TypeError: the layer is none that this adapter knows.
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
            each = [linear_slots(module.projections[name], f"{path}.{name}.") for name in _PROJECTIONS]
            return {name: slot for slots in each for name, slot in slots.items()}
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
