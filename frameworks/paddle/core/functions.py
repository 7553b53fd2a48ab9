"""An operation whose backward pass a user wrote, in the dynamic and in the static graph."""

from typing import Any

import paddle

from frameworks.contract import FunctionFormat

DYNAMIC_WAYS: dict[str, FunctionFormat] = {"PyLayer": "input"}
STATIC_WAYS: dict[str, FunctionFormat] = {"static_pylayer": "input"}


def _back(x: Any, gradient: Any) -> Any:
    return gradient * paddle.clip(2.0 * x, -1.0, 1.0)


class _Square(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensor()
        return _back(x, gradient)


class UserFunctionLayer(paddle.nn.Layer):
    """`fixtures.layers.UserFunction`."""

    def forward(self, x: Any) -> Any:
        if paddle.in_dynamic_mode():
            return _Square.apply(x)
        return paddle.static.nn.static_pylayer(lambda given: given * given, [x], lambda gradient: _back(x, gradient))


class ThreeInputsPyLayer(paddle.autograd.PyLayer):
    """The operation of `fixtures.functions`; the list takes what each backward pass finds."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> Any:
        ctx.save_for_backward(a, b, c)
        ctx.scale, ctx.asked = scale, asked
        return scale * a * b, b + c

    @staticmethod
    def backward(ctx: Any, y: Any, z: Any) -> Any:
        a, b, _ = saved = ctx.saved_tensor()
        needs = tuple(not each.stop_gradient for each in saved)
        ctx.asked.append(needs)
        every = (2.0 * ctx.scale * y * b, ctx.scale * y * a + z, z)
        return tuple(each if needed else None for each, needed in zip(every, needs, strict=True))
