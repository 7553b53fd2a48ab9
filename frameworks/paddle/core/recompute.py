"""The cases of Σ tanh(x·w) through `paddle.distributed.fleet.utils.recompute`."""

from collections.abc import Callable
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.arrays import Array
from fixtures.functions import SCALE, FunctionUse
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, RecomputeCase, RecomputeResult
from frameworks.paddle.core.arrays import to_numpy
from frameworks.paddle.core.functions import ThreeInputsPyLayer
from frameworks.paddle.core.network import REENTRANT


def _value(x: Any, w: Any) -> Any:
    return paddle.tanh(paddle.matmul(x, w)).sum()


def run_case(case: RecomputeCase, x: Array, w: Array, variant: str) -> RecomputeResult:
    """Value and gradients of the probe function; x (n, m) and w (m, k) float32.

    Raises:
        OSError: in the case "raises", which is what Paddle makes of an error in the recomputed forward.
    """
    rerun = FailingRerun()

    def run(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return recompute(function, *args, use_reentrant=variant == REENTRANT, **named)

    def failing(a: Any, b: Any) -> Any:
        rerun.begin()
        return _value(a, b)

    inputs, weight = paddle.to_tensor(x), paddle.to_tensor(w)
    inputs.stop_gradient = case == NO_GRAD_INPUT
    weight.stop_gradient = False
    value = recomputed_call(case, run, _value, failing, inputs, weight)
    if case == WEIGHTS_CHANGE:
        with paddle.no_grad():
            weight.multiply_(paddle.to_tensor(FACTOR))
    if not value.stop_gradient:
        value.backward()
    grads = [None if tensor.grad is None else to_numpy(tensor.grad) for tensor in (inputs, weight)]
    return RecomputeResult(float(value), *grads)


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None) -> FunctionResult:
    """What backward passes of `fixtures.functions` find, and the gradients."""
    asked: list[tuple[bool, ...]] = []
    given = [paddle.to_tensor(x, stop_gradient=not need) for x, need in zip(inputs, use.needs, strict=True)]

    def loss(*given: Any) -> Any:
        each = [dict(zip("yz", ThreeInputsPyLayer.apply(*given, SCALE, asked), strict=True)) for _ in range(use.times)]
        return paddle.add_n([outputs[name].sum() for outputs in each for name in use.outputs])

    value = loss(*given) if variant is None else recompute(loss, *given, use_reentrant=variant == REENTRANT)
    value.backward()
    return FunctionResult(tuple(asked), tuple(None if each.grad is None else to_numpy(each.grad) for each in given))
