"""An operation of a user's with several inputs, by `static_pylayer`."""

from __future__ import annotations

from typing import Any

import paddle

from fixtures.arrays import Array
from fixtures.functions import SCALE, FunctionUse
from frameworks.contract import FunctionResult
from frameworks.paddle.static.programs import ProgramState


def _used(a: Any, b: Any, c: Any) -> dict[str, Any]:
    """The operation of `fixtures.functions`; its backward pass returns every gradient, since it cannot ask."""

    def forward(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
        return SCALE * a * b, b + c

    def backward(y: Any, z: Any) -> tuple[Any, Any, Any]:
        return 2.0 * SCALE * y * b, SCALE * y * a + z, paddle.assign(z)

    return dict(zip("yz", paddle.static.nn.static_pylayer(forward, [a, b, c], backward), strict=True))


def function_used(use: FunctionUse, inputs: tuple[Array, ...]) -> FunctionResult:
    """The gradients of a program that uses the operation."""
    store = ProgramState()
    result: list[bool] = []

    def make(_: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
        given = [paddle.static.data(name, list(x.shape), "float32") for name, x in zip("abc", inputs, strict=True)]
        for each, needed in zip(given, use.needs, strict=True):
            each.stop_gradient = not needed
        losses = [outputs[name].sum() for outputs in (_used(*given) for _ in range(use.times)) for name in use.outputs]
        gradients = paddle.static.gradients([paddle.add_n(losses)], given)
        result.extend(gradient is not None for gradient in gradients)
        return tuple(gradient for gradient in gradients if gradient is not None), {}

    values = iter(store.run(store.build(make), dict(zip("abc", inputs, strict=True))))
    return FunctionResult(None, tuple(next(values) if present else None for present in result))
