"""Faults of layers in PyTorch."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from frameworks.torch import TorchFramework
from frameworks.torch.core import layers
from tools.faults import fault


@fault("https://github.com/keras-team/keras-hub/issues/642", "autocast.float32-parity", names="(LayerNorm), output")
class LayerNormWithAnotherEpsilon(TorchFramework):
    """`layer_norm` adds a hundred times the epsilon that it is given."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        norm = functional.layer_norm
        functional.layer_norm = lambda x, shape, weight, bias, eps: norm(x, shape, weight, bias, 100.0 * eps)


@fault(
    "https://github.com/lucidrains/vit-pytorch/issues/65", "autocast.float32-parity", names="(SelfAttention), output"
)
class AttentionScaledByAnotherWidth(TorchFramework):
    """`scaled_dot_product_attention` divides its scores by the root of one more than a head's width."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        attention = layers.scaled_dot_product_attention

        def flatter(query: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
            return attention(query, *others, scale=(query.shape[-1] + 1) ** -0.5)

        layers.scaled_dot_product_attention = flatter


class _TurnedBackwards(torch.autograd.Function):
    """A filter (F, C, size, size) as it is, whose gradient comes back with its last two axes exchanged."""

    @staticmethod
    def forward(_: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].transpose(2, 3).contiguous()


@fault(
    "https://github.com/nntrainer/nntrainer/issues/705",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(TorchFramework):
    """The gradient of a convolution's filters has height and width exchanged."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        convolve = torch.nn.Conv2d._conv_forward

        def turned(self: torch.nn.Conv2d, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
            return convolve(self, x, _TurnedBackwards.apply(weight), bias)

        torch.nn.Conv2d._conv_forward = turned


@fault("https://github.com/PaddlePaddle/Paddle/issues/79145", "composition.control-flow")
class CompiledUpdatesInPlaceAreLost(TorchFramework):
    """Compiled, `Tensor.add_` returns the sum and leaves its tensor as it was."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        compiled = torch.compile

        def lost(function: Any, **options: Any) -> Any:
            made = compiled(function, **options)

            def called(*given: Any) -> Any:
                with patch.object(torch.Tensor, "add_", torch.Tensor.add):
                    return made(*given)

            return called

        torch.compile = lost
