"""`torch.utils.checkpoint` around Σ tanh(x·w), its arguments passed in every way that users pass them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.torch.arrays import to_array, to_tensor
from frameworks.torch.compiling import begin_anew, compiled
from frameworks.torch.network import VARIANTS

Probe = Callable[..., torch.Tensor]


def _value(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).sum()


def _of_sequence(pair: Sequence[torch.Tensor]) -> torch.Tensor:
    return _value(pair[0], pair[1])


def _of_mapping(pair: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return _value(pair["x"], pair["w"])


@dataclass
class _Runs:
    """How often the function that fails has run since its case began."""

    count: int = 0


_RUNS = _Runs()


@torch.library.custom_op("conformance::fails_the_second_time", mutates_args=())
def _fails_the_second_time(x: torch.Tensor) -> torch.Tensor:
    """A copy of `x`; an operator, so that it is run, and fails, in compiled graphs as well."""
    _RUNS.count += 1
    if _RUNS.count == 2:
        raise RuntimeError("the second run of this function fails")
    return x.clone()


@_fails_the_second_time.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_fails_the_second_time.register_autograd(lambda _, gradient: gradient)


def _failing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _value(_fails_the_second_time(x), w)


def _forward(case: RecomputeCase, x: torch.Tensor, w: torch.Tensor, reentrant: bool) -> torch.Tensor:
    def run(function: Probe, *args: Any, **named: Any) -> torch.Tensor:
        return cast(torch.Tensor, checkpoint(function, *args, use_reentrant=reentrant, **named))

    match case:
        case "plain":
            return _value(x, w)
        case "positional":
            return run(_value, x, w)
        case "tuple":
            return run(_of_sequence, (x, w))
        case "list":
            return run(_of_sequence, [x, w])
        case "dict":
            return run(_of_mapping, {"x": x, "w": w})
        case "keyword":
            return run(_value, x=x, w=w)
        case "no-grad-input" | "weights-changed":
            return run(lambda inner: _value(inner, w), x)
        case "raises":
            return run(_failing, x, w)


def recompute(
    case: RecomputeCase, x: Array, w: Array, variant: str, device: str, *, compile_it: bool = False
) -> RecomputeResult:
    """One case of `Framework.recompute`; PyTorch's own exceptions leave this call.

    Weights that change are closed over, as a module's are. The value stands for one part of a loss whose other parts
    are trained as well: where it is cut off from the graph, the loss still has a backward pass, which gives it nothing.
    """
    inputs = to_tensor(x, device, torch.float32).requires_grad_(case != "no-grad-input")
    weight = to_tensor(w, device, torch.float32).requires_grad_()
    _RUNS.count = 0
    forward: Callable[..., torch.Tensor] = partial(_forward, case, reentrant=VARIANTS[variant])
    if compile_it:
        begin_anew()
        forward = compiled(forward)
    value = forward(inputs, weight)
    if case == "weights-changed":
        with torch.no_grad():
            weight.mul_(3.0)
    if value.requires_grad:
        value.backward()
    gradients = [None if tensor.grad is None else to_array(tensor.grad) for tensor in (inputs, weight)]
    return RecomputeResult(float(value.detach()), gradients[0], gradients[1])
