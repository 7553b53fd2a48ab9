"""The cases of `Framework.recompute`, shared by all adapters: argument passing and errors.

An adapter gives the few operations that a case is made of: the function, the framework's recomputation call, and a
function whose second run fails. It differentiates what `recomputed_call` returns, and does between the forward and the
backward pass what `WEIGHTS_CHANGE` and `NO_GRAD_INPUT` ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from frameworks.contract import RecomputeCase

T = TypeVar("T")

NO_GRAD_INPUT: RecomputeCase = "no-grad-input"
"""The case in which x asks for no gradient."""
WEIGHTS_CHANGE: RecomputeCase = "weights-changed"
"""The case in which w is multiplied by `FACTOR`, in place, between the forward and the backward pass."""
FACTOR = 3.0
CLOSED_OVER: tuple[RecomputeCase, ...] = (NO_GRAD_INPUT, WEIGHTS_CHANGE)
"""The cases in which the function takes x alone and closes over w, as a module does over its parameters."""


class FailingRerun:
    """Counts the runs of a function and makes each but the first fail, in the case "raises"."""

    def __init__(self) -> None:
        self.runs = 0

    def begin(self) -> None:
        """Begins a run.

        Raises:
            RuntimeError: it is not the first one.
        """
        self.runs += 1
        if self.runs > 1:
            raise RuntimeError("the second run of this function fails")


def recomputed_call(
    case: RecomputeCase,
    run: Callable[..., T],
    value: Callable[[Any, Any], T],
    failing: Callable[[Any, Any], T],
    x: Any,
    w: Any,
) -> T:
    """Calls the function as a case says.

    Args:
        run: the framework's recomputation call: `run(function, *args, **named)`.
        value: the function, of x (n, m) and w (m, k) in the framework's own tensors.
        failing: the same function, which fails when it is run for the second time.

    Raises:
        ValueError: there is no such case.
    """

    def of_sequence(pair: Sequence[Any]) -> T:
        return value(pair[0], pair[1])

    def of_mapping(pair: Mapping[str, Any]) -> T:
        return value(pair["x"], pair["w"])

    def of_x(inner: Any) -> T:
        return value(inner, w)

    match case:
        case "plain":
            return value(x, w)
        case "positional":
            return run(value, x, w)
        case "tuple":
            return run(of_sequence, (x, w))
        case "list":
            return run(of_sequence, [x, w])
        case "dict":
            return run(of_mapping, {"x": x, "w": w})
        case "keyword":
            return run(value, x=x, w=w)
        case "no-grad-input" | "weights-changed":
            return run(of_x, x)
        case "raises":
            return run(failing, x, w)
        case _:
            raise ValueError(f"there is no recomputation case {case!r}")
