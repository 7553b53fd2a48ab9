"""One forward and backward pass of a model, and an ensemble of randomly rounded ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Gradients = dict[str, torch.Tensor]
Loss = Callable[[Any], torch.Tensor]
"""The loss of a model on the batch of a head."""

FLOAT32 = torch.finfo(torch.float32).eps
MEMBERS = 4
"""Passes of an ensemble."""

_EXACT = (
    "empty", "zeros", "ones", "full", "clone", "copy", "arange", "index", "gather", "scatter", "embedding.", "cat",
    "stack", "where", "masked", "max", "min", "relu", "neg", "abs", "sort", "topk", "view", "slice", "select", "detach",
    "eye", "tril", "triu", "round", "floor", "ceil", "fill", "bernoulli", "rand", "sign", "one_hot", "pad", "roll",
    "histc",
    "new_",
)  # fmt: skip


@dataclass(frozen=True)
class MeasuredPass:
    """The loss and gradients of one pass."""

    loss: float
    gradients: Gradients


class RandomRounding(TorchDispatchMode):
    """Multiplies every result of arithmetic by 1 + u, u uniform within one unit in the last place of a format."""

    def __init__(self, ulp: float, seed: int) -> None:
        super().__init__()
        self._ulp = ulp
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not _rounds(func):
            return made
        return type(made)(map(self._rounded, made)) if isinstance(made, tuple | list) else self._rounded(made)

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.device.type == "meta":
            return value
        factor = torch.empty(value.shape, dtype=value.dtype)
        factor.uniform_(1.0 - self._ulp, 1.0 + self._ulp, generator=self._generator)
        rounded = value * factor
        return torch.where(torch.isfinite(rounded), rounded, value)


@cache
def _rounds(func: Any) -> bool:
    """Whether an operation makes new values by arithmetic."""
    if any(each.alias_info is not None for each in func._schema.returns):
        return False
    plain = str(func).removeprefix("aten.").removeprefix("_")
    return "backward" in plain or not any(plain.startswith(word) for word in _EXACT)


def run(model: Any, loss_of: Loss) -> MeasuredPass:
    """One pass; gradients of former passes are dropped."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model)
    loss.backward()
    return MeasuredPass(float(loss.detach()), gradients_of(model))


def gradients_of(model: Any) -> Gradients:
    """Copies of all gradients by name, without parameters that have none."""
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def ensemble(model: Any, loss_of: Loss, ulp: float) -> tuple[float, float]:
    """The furthest loss and gradient of `MEMBERS` randomly rounded passes, as distances from the pass itself."""
    exact = run(model, loss_of)
    losses, distances = [], []
    for seed in range(MEMBERS):
        torch.manual_seed(0)
        with RandomRounding(ulp, seed):
            member = run(model, loss_of)
        losses.append(abs(member.loss - exact.loss))
        distances.append(distance(member.gradients, exact.gradients))
    return max(losses), max(distances)


def bounds(model: Any, loss_of: Loss, ulp: float) -> tuple[float, float]:
    """Twice the distances of the furthest member: how far a correct loss and gradient may be."""
    of_loss, of_gradients = ensemble(model, loss_of, ulp)
    return 2 * of_loss, 2 * of_gradients


def norm(gradients: Mapping[str, torch.Tensor]) -> float:
    """2-norm of all gradients."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in gradients.values()))


def distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """2-norm of the difference; a gradient that one side lacks counts as zero."""
    return norm(
        {
            name: one.get(name, torch.zeros(())).double() - other.get(name, torch.zeros(())).double()
            for name in {**one, **other}
        }
    )


def same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> str:
    """The first tensor that differs, "" if none does."""
    for name in {**one, **other}:
        if name not in one or name not in other:
            return name
        left, right = one[name], other[name]
        if left.dtype != right.dtype or not torch.equal(left.nan_to_num(), right.nan_to_num()):
            return name
    return ""


def state_of(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    """Weights, buffers, the optimizer's moments and the CPU's random state."""
    state = {f"model/{name}": value.detach().clone() for name, value in model.state_dict().items()}
    for number, slots in optimizer.state_dict()["state"].items():
        state |= {f"optimizer/{number}/{slot}": torch.as_tensor(value).clone() for slot, value in slots.items()}
    return state | {"random": torch.get_rng_state()}
