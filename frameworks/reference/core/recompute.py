"""Recomputation of Σ tanh(x·w) by the reference's own tape."""

from __future__ import annotations

from typing import Any

import numpy as np

from fixtures.arrays import Array
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.network import tanh_of_product
from frameworks.reference.core.tape import recompute_function, record_pullbacks

Pair = tuple[Any, Any]


def run(ops: Operations, case: RecomputeCase, x: Array, w: Array) -> RecomputeResult:
    """Σ tanh(x·w) and its gradients, recomputed with the arguments of `case`; x (n, m) and w (m, k), float32.

    Raises:
        ValueError: `case` is unknown.
        RuntimeError: in "weights-changed", w was changed before backward; in "raises", the second run raised.
    """
    rerun = FailingRerun()

    def value(x: Any, w: Any) -> Any:
        return tanh_of_product(ops, x, w)

    def failing(x: Any, w: Any) -> Any:
        rerun.begin()
        return value(x, w)

    def call(pair: Pair) -> Any:
        return recomputed_call(case, recompute_function, value, failing, *pair)

    carriers = x.astype(np.float64), w.astype(np.float64)
    if case == NO_GRAD_INPUT:
        (total,), (pull,) = record_pullbacks(lambda weight: [call((carriers[0], weight))], carriers[1])
        gradients = (None, pull(np.ones(())))
    else:
        (total,), (pull,) = record_pullbacks(lambda pair: [call(pair)], carriers)
        if case == WEIGHTS_CHANGE:
            np.multiply(carriers[1], FACTOR, out=carriers[1])
        gradients = pull(np.ones(()))
    stored = ops.rounding.dtype("float32")
    gx, gw = (None if g is None else ops.rounding.round(g, "float32").astype(stored) for g in gradients)
    return RecomputeResult(float(total), gx, gw)
