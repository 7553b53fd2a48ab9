"""Recomputation by `torch.utils.checkpoint`: its variants, the runs of segments, and the cases of Σ tanh(x·w)."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from fixtures.functions import SCALE, FunctionUse
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, RecomputeCase, RecomputeResult
from frameworks.torch.core.arrays import to_array, to_tensor
from frameworks.torch.core.compiling import MODES, begin_anew, compiled
from frameworks.torch.core.functions import ThreeInputsFunction

VARIANTS: dict[str, bool] = {"non-reentrant": False, "reentrant": True}
"""Names of `torch.utils.checkpoint`'s two implementations, the recommended one first, and their `use_reentrant`."""
DEFAULT = next(iter(VARIANTS))

_NUMBERS = count()


class SegmentCalls:
    """A count for each segment; `number` is how the operator of compiled forward passes finds it."""

    def __init__(self, segments: int) -> None:
        self.counts = [0] * segments
        self.number = next(_NUMBERS)
        _OF_NUMBER[self.number] = self


_OF_NUMBER: WeakValueDictionary[int, SegmentCalls] = WeakValueDictionary()


@torch.library.custom_op("conformance::segment_begins", mutates_args=())
def segment_begins(x: torch.Tensor, number: int, index: int) -> torch.Tensor:
    """A copy of a segment's input; each time a compiled graph runs this operator, the segment is counted."""
    _OF_NUMBER[number].counts[index] += 1
    return x.clone()


@segment_begins.register_fake
def _(x: torch.Tensor, number: int, index: int) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


segment_begins.register_autograd(lambda _, gradient: (gradient, None, None))


_RERUN = FailingRerun()
"""Of the case that runs now: an operator finds nothing but what is global."""


@torch.library.custom_op("conformance::fails_the_second_time", mutates_args=())
def _fails_the_second_time(x: torch.Tensor) -> torch.Tensor:
    """A copy of `x`; an operator, so that it is run, and fails, in compiled graphs as well."""
    _RERUN.begin()
    return x.clone()


@_fails_the_second_time.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_fails_the_second_time.register_autograd(lambda _, gradient: gradient)


def _value(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).sum()


def _failing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _value(_fails_the_second_time(x), w)


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, device: str, mode: str) -> RecomputeResult:
    """One case of `Framework.recompute`; PyTorch's own exceptions leave this call.

    The value stands for one part of a loss whose other parts are trained as well: where it is cut off from the graph,
    the loss still has a backward pass, which gives it nothing.
    """

    def run(function: Callable[..., torch.Tensor], *args: Any, **named: Any) -> torch.Tensor:
        return checkpoint(function, *args, use_reentrant=VARIANTS[variant], **named)

    return differentiated(case, x, w, run, device, mode)


def differentiated(
    case: RecomputeCase, x: Array, w: Array, run: Callable[..., torch.Tensor], device: str, mode: str = "eager"
) -> RecomputeResult:
    """Value and gradients of a case whose recomputation call is `run(function, *args, **named)`."""
    inputs = to_tensor(x, device, torch.float32).requires_grad_(case != NO_GRAD_INPUT)
    weight = to_tensor(w, device, torch.float32).requires_grad_()
    _RERUN.runs = 0
    forward: Callable[..., torch.Tensor] = partial(recomputed_call, case, run, _value, _failing)
    if mode in MODES:
        begin_anew()
        forward = compiled(forward, mode)
    value = forward(inputs, weight)
    if case == WEIGHTS_CHANGE:
        with torch.no_grad():
            weight.mul_(FACTOR)
    if value.requires_grad:
        value.backward()
    gradients = [None if tensor.grad is None else to_array(tensor.grad) for tensor in (inputs, weight)]
    return RecomputeResult(float(value.detach()), gradients[0], gradients[1])


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None, device: str) -> FunctionResult:
    """What backward passes of `fixtures.functions` find, and the gradients."""
    asked: list[tuple[bool, ...]] = []
    given = [
        to_tensor(x, device, torch.float32).requires_grad_(need) for x, need in zip(inputs, use.needs, strict=True)
    ]

    def loss(*given: torch.Tensor) -> torch.Tensor:
        each = [dict(zip("yz", ThreeInputsFunction.apply(*given, SCALE, asked), strict=True)) for _ in range(use.times)]
        return torch.stack([outputs[name].sum() for outputs in each for name in use.outputs]).sum()

    value = loss(*given) if variant is None else checkpoint(loss, *given, use_reentrant=VARIANTS[variant])
    value.backward()
    return FunctionResult(tuple(asked), tuple(None if each.grad is None else to_array(each.grad) for each in given))
