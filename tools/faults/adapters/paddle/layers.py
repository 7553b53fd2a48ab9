"""Faults of layers in Paddle."""

from __future__ import annotations

from typing import Any

import paddle

from frameworks.paddle import PaddleFramework
from tools.faults import fault


@fault("https://github.com/mindspore-lab/mindone/pull/219", "autocast.float32-parity", names="(LayerNorm), output")
class NormEpsilonTooLarge(PaddleFramework):
    """Layer norm's epsilon is a hundred times what was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        begin = paddle.nn.LayerNorm.__init__

        def enlarged(self: Any, shape: Any, epsilon: float = 1e-5, **given: Any) -> None:
            begin(self, shape, 100.0 * epsilon, **given)

        paddle.nn.LayerNorm.__init__ = enlarged


@fault(
    "https://github.com/lucidrains/vit-pytorch/issues/65", "autocast.float32-parity", names="(SelfAttention), output"
)
class AttentionScaleTooSmall(PaddleFramework):
    """Attention divides its scores by the square root of one more than the length of a head's vectors."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        prepare = paddle.nn.MultiHeadAttention._prepare_qkv

        def rescaled(self: Any, *given: Any) -> Any:
            query, *others = prepare(self, *given)
            return query * (self.head_dim / (self.head_dim + 1)) ** 0.5, *others

        paddle.nn.MultiHeadAttention._prepare_qkv = rescaled


@fault(
    "https://github.com/nntrainer/nntrainer/issues/705",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientTransposed(PaddleFramework):
    """The gradient of a convolution's weight has its height and width in each other's place."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        begin = paddle.nn.Conv2D.__init__

        def hooked(self: Any, *given: Any, **named: Any) -> None:
            begin(self, *given, **named)
            self.weight.register_hook(lambda gradient: gradient.transpose([0, 1, 3, 2]))

        paddle.nn.Conv2D.__init__ = hooked
