"""The cases of Σ tanh(x·w) through `paddle.distributed.fleet.utils.recompute`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.arrays import Array
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.paddle.arrays import to_numpy
from frameworks.paddle.network import REENTRANT


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
