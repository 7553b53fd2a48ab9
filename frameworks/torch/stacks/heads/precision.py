"""Mixed precision by `torch.autocast`: formats, distance from float32, and what a scope leaves behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from frameworks.torch.stacks.heads.checks import UNBOUNDED, HeadCheck, judged, left_out
from frameworks.torch.stacks.heads.passes import MEMBERS, Loss, bounds, distance, norm, run

FORMATS = {"bfloat16": ("autocast.bf16-parity", torch.bfloat16), "float16": ("autocast.fp16-parity", torch.float16)}


def checks(model: Any, loss_of: Loss, formats: tuple[str, ...], unsteady: str = "") -> Iterator[HeadCheck]:
    """Checks of the clauses of autocast, for one model on the CPU.

    Args:
        unsteady: why two passes of the model cannot be compared, "" if they can.
    """
    wide = run(model, loss_of)
    before = {name: (value.dtype, value.detach().clone()) for name, value in model.named_parameters()}
    for name in formats:
        clause, low = FORMATS[name]
        former = _state()
        kinds: list[torch.dtype] = []

        def scoped(each: Any, low: torch.dtype = low, kinds: list[torch.dtype] = kinds) -> torch.Tensor:
            with torch.autocast("cpu", dtype=low):
                loss = loss_of(each)
            kinds.append(loss.dtype)
            return loss

        try:
            mixed = run(model, scoped)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            yield left_out(clause, name, f"raises {type(error).__name__}: {' '.join(str(error).split())[:160]}")
            continue
        yield from _formats(model, before, name, kinds[0])
        yield judged("autocast.scope-restored", name, _state() == former, _scope_text(_state()), _scope_text(former))
        if unsteady:
            yield left_out(clause, name, unsteady)
            continue
        loss_bound, bound = bounds(model, loss_of, torch.finfo(low).eps)
        apart, moved = distance(mixed.gradients, wide.gradients), abs(mixed.loss - wide.loss)
        size = norm(wide.gradients)
        if not math.isfinite(bound + loss_bound):
            yield left_out(clause, name, UNBOUNDED)
            continue
        loss_bound += torch.finfo(low).eps * abs(wide.loss)
        holds = math.isfinite(apart) and apart <= bound and moved <= loss_bound
        got = f"gradient {apart:.3g} and loss {moved:.3g} from float32's ({size:.3g}, {wide.loss:.6g})"
        yield judged(clause, name, holds, got, f"at most {bound:.3g} and {loss_bound:.3g}, of {MEMBERS} members")


def _formats(model: Any, before: dict[str, Any], name: str, loss: torch.dtype) -> Iterator[HeadCheck]:
    now = {key: (value.dtype, value) for key, value in model.named_parameters()}
    changed = [
        key for key, (kind, value) in now.items() if kind != before[key][0] or not torch.equal(value, before[key][1])
    ]
    low = [key for key, (kind, value) in now.items() if value.grad is not None and value.grad.dtype != kind]
    wrong = [*changed, *low]
    got = f"{wrong[0]} and {len(wrong) - 1} more" if wrong else "all parameters and gradients float32"
    yield judged("autocast.parameters-stay-float32", name, not wrong, got, "float32, unchanged")
    yield judged("autocast.loss-is-wide", name, loss == torch.float32, str(loss), "torch.float32")


def _scope_text(state: tuple[Any, ...]) -> str:
    enabled, low, default, gradients = state
    formats = f"autocast's format {low}, default format {default}".replace("torch.", "")
    return f"autocast {_switch(enabled)}, gradients {_switch(gradients)}, {formats}"


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _state() -> tuple[Any, ...]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )
