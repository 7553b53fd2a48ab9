"""The probe function Σ tanh(x·w) through `paddle.distributed.fleet.utils.recompute`, in every way of passing it."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute

from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.paddle.arrays import to_numpy
from frameworks.paddle.layers import REENTRANT


def _product(x: Any, w: Any) -> Any:
    return paddle.tanh(paddle.matmul(x, w)).sum()


def run_case(case: RecomputeCase, x: Array, w: Array, variant: str) -> RecomputeResult:
    """Value and gradients of the probe function; x (n, m) and w (m, k) float32.

    Raises:
        OSError: in the case "raises", which is what Paddle makes of an error in the recomputed forward.
    """
    inputs, weight = paddle.to_tensor(x), paddle.to_tensor(w)
    inputs.stop_gradient = case == "no-grad-input"
    weight.stop_gradient = False
    value = _forward(case, inputs, weight, {"use_reentrant": variant == REENTRANT})
    if case == "weights-changed":
        with paddle.no_grad():
            weight.multiply_(paddle.to_tensor(3.0))
    if not value.stop_gradient:
        value.backward()
    grads = [None if tensor.grad is None else to_numpy(tensor.grad) for tensor in (inputs, weight)]
    return RecomputeResult(float(value), *grads)


def _forward(case: RecomputeCase, x: Any, w: Any, how: dict[str, bool]) -> Any:
    runs = 0

    def failing(a: Any, b: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs > 1:
            raise RuntimeError("the recomputed forward was asked to fail")
        return _product(a, b)

    match case:
        case "plain":
            return _product(x, w)
        case "positional" | "weights-changed":
            return recompute(_product, x, w, **how)
        case "tuple" | "list":
            packed = (x, w) if case == "tuple" else [x, w]
            return recompute(lambda pair: _product(*pair), packed, **how)
        case "dict":
            return recompute(lambda pair: _product(pair["x"], pair["w"]), {"x": x, "w": w}, **how)
        case "keyword":
            return recompute(_product, x=x, w=w, **how)
        case "no-grad-input":
            return recompute(lambda a: _product(a, w), x, **how)
        case "raises":
            return recompute(failing, x, w, **how)
