"""The cases of `Framework.recompute`: how arguments reach a recomputed function, and what may go wrong in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference.catalogue import tanh_of_product
from frameworks.reference.operations import Operations
from frameworks.reference.tape import recomputed, taped

Pair = tuple[Any, Any]


def run(ops: Operations, case: RecomputeCase, x: Array, w: Array) -> RecomputeResult:
    """Σ tanh(x·w) and its gradients, recomputed as `case` says.

    Raises:
        ValueError: no such case.
        RuntimeError: "weights-changed" is detected; "raises" raises.
    """
    if case not in get_args(RecomputeCase):
        raise ValueError(f"no recomputation case {case!r}")
    carriers = x.astype(np.float64), w.astype(np.float64)
    call = _call(ops, case, carriers[0])
    if case == "no-grad-input":
        (value,), (pull,) = taped(lambda weight: [call((None, weight))], carriers[1])
        gradients = (None, pull(np.ones(())))
    else:
        (value,), (pull,) = taped(lambda pair: [call(pair)], carriers)
        if case == "weights-changed":
            np.multiply(carriers[1], 3.0, out=carriers[1])
        gradients = pull(np.ones(()))
    stored = ops.rounding.dtype("float32")
    gx, gw = (None if g is None else ops.rounding.round(g, "float32").astype(stored) for g in gradients)
    return RecomputeResult(float(value), gx, gw)


def _call(ops: Operations, case: RecomputeCase, plain_x: Array) -> Callable[[Pair], Any]:
    def function(x: Any, w: Any) -> Any:
        return tanh_of_product(ops, x, w)

    runs = []

    def failing(x: Any, w: Any) -> Any:
        runs.append(1)
        if len(runs) > 1:
            raise RuntimeError("the recomputed forward fails")
        return function(x, w)

    def closed_over(pair: Pair) -> Any:
        weight = pair[1]

        def inner(x: Any) -> Any:
            return function(x, weight)

        return recomputed(inner, plain_x)

    match case:
        case "plain":
            return lambda pair: function(pair[0], pair[1])
        case "tuple":
            return lambda pair: recomputed(lambda both: function(*both), (pair[0], pair[1]))
        case "list":
            return lambda pair: recomputed(lambda both: function(*both), [pair[0], pair[1]])
        case "dict":
            return lambda pair: recomputed(lambda both: function(**both), {"x": pair[0], "w": pair[1]})
        case "keyword":
            return lambda pair: recomputed(function, x=pair[0], w=pair[1])
        case "no-grad-input":
            return closed_over
        case "raises":
            return lambda pair: recomputed(failing, pair[0], pair[1])
        case _:
            return lambda pair: recomputed(function, pair[0], pair[1])
