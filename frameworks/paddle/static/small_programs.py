"""Programs of one thing each: an operation, a cast, an operation of a user's, an update by a schedule."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.utils import unique_name

from fixtures.arrays import Array
from fixtures.functions import SCALE, FunctionUse
from frameworks.base import BaseFormats
from frameworks.call_stacks import short_call_stacks
from frameworks.contract import CastRule, FunctionResult, OpResult
from frameworks.paddle.core.arrays import format_name
from frameworks.paddle.core.devices import place
from frameworks.paddle.static.programs import ProgramState, array_of, fed
from frameworks.paddle.training.plateau import PlateauRun


def run_operation(function: Callable[..., Any], arrays: Sequence[Array]) -> OpResult:
    """Builds a program of one operation inside the open precision scope and runs it."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with short_call_stacks(), unique_name.guard(), paddle.static.program_guard(main, startup):
        inputs = [paddle.static.data(f"x{i}", list(a.shape), str(a.dtype)) for i, a in enumerate(arrays)]
        result = function(*inputs)
    executor = paddle.static.Executor(place())
    with short_call_stacks(), paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        feed = {f"x{i}": fed(a) for i, a in enumerate(arrays)}
        (value,) = executor.run(main, feed=feed, fetch_list=[result], return_numpy=False)
    return OpResult(array_of(value), format_name(result.dtype))


class StaticFormats(BaseFormats):
    """`paddle.cast` to integers, whose result an executor fetches; casts to float8 show no codes."""

    def casts(self) -> Mapping[str, CastRule]:
        return {}

    def encode(self, values: Array, format_name: str) -> Array:
        return run_operation(lambda x: paddle.cast(x, format_name), [values]).value.view(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        return run_operation(lambda x: paddle.cast(x, "float32"), [codes.view(format_name)]).value


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


class PlateauProgram(PlateauRun):
    """A program that updates one weight by a schedule's rate; the schedule is saved."""

    def begin(self) -> None:
        self.part, self._store = self.scheduler, ProgramState()
        self._built = self._store.build(self._make)

    def _make(self, startup: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
        loss = paddle.create_parameter([1], "float32").sum()
        paddle.optimizer.SGD(self.scheduler).minimize(loss, startup_program=startup)
        return (loss,), {}

    def rate(self) -> float:
        """The rate that the executor sets for an update."""
        self._store.run(self._built, {})
        return float(self._store.read(self._built.program.lr_name))
