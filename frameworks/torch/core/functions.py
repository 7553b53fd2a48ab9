"""Operations whose backward pass a user wrote, by each of PyTorch's public ways."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd

from frameworks.contract import FunctionFormat
from frameworks.torch.core import devices

Function = Callable[[torch.Tensor], torch.Tensor]
WAYS: dict[str, FunctionFormat] = {
    "setup_context": "input",
    "forward-with-context": "input",
    "custom_fwd": "input",
    "custom_fwd-setup_context": "input",
    "custom_fwd-float32": "float32",
    **({"custom_op": "input"} if hasattr(torch.library, "custom_op") else {}),
}
"""Ways by name, the default first, with the format in which each computes under autocast, as documented."""


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _back(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * torch.clamp(2.0 * x, -1.0, 1.0)


def _keep(ctx: Any, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
    ctx.save_for_backward(x)
    return _square(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return _back(x, gradient)


def _class_of(**methods: Callable[..., Any]) -> Function:
    """`torch.autograd.Function` with these static methods."""
    static = {name: staticmethod(each) for name, each in methods.items()}
    made: Any = type("Square", (torch.autograd.Function,), static)
    return made.apply


def _custom_op() -> Function:
    made = torch.library.custom_op("conformance::square", _square, mutates_args=())
    made.register_fake(torch.empty_like)
    made.register_autograd(_backward, setup_context=lambda ctx, inputs, output: _keep(ctx, inputs, output))
    return made


@cache
def function(way: str, device: str) -> Function:
    """The operation written in this way, where it has decorators for autocast on a kind of device."""
    decorated, decorated_backward = partial(custom_fwd, device_type=device), custom_bwd(_backward, device_type=device)
    match way:
        case "setup_context":
            return _class_of(forward=_square, setup_context=_keep, backward=_backward)
        case "forward-with-context":
            return _class_of(forward=_forward, backward=_backward)
        case "custom_op":
            return _custom_op()
        case "custom_fwd-setup_context":
            return _class_of(forward=decorated(_square), setup_context=_keep, backward=decorated_backward)
        case _:
            wide = torch.float32 if way == "custom_fwd-float32" else None
            return _class_of(forward=decorated(_forward, cast_inputs=wide), backward=decorated_backward)


class UserFunctionLayer(nn.Module):
    """`fixtures.layers.UserFunction`, written in one of `WAYS`."""

    def __init__(self, way: str | None) -> None:
        super().__init__()
        self.functions = {device: function(way or next(iter(WAYS)), device) for device in devices.available()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.functions[x.device.type](x)


class ThreeInputsFunction(torch.autograd.Function):
    """The operation of `fixtures.functions`; the list takes what each backward pass finds."""

    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale: float, asked: list[tuple[bool, ...]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(a, b)
        ctx.scale, ctx.asked = scale, asked
        return scale * a * b, b + c

    @staticmethod
    def backward(ctx: Any, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, b), needs = ctx.saved_tensors, ctx.needs_input_grad[:3]
        ctx.asked.append(needs)
        every = (2.0 * ctx.scale * y * b, ctx.scale * y * a + z, z)
        return *(each if needed else None for each, needed in zip(every, needs, strict=True)), None, None
