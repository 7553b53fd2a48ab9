"""Gradient checkpointing: the same loss and gradients, from fewer saved bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from frameworks.torch.core.saved_bytes import SavedBytes
from frameworks.torch.stacks.heads.checks import HeadCheck, judged
from frameworks.torch.stacks.heads.passes import Loss, MeasuredPass, distance, norm, run, same_bits


@dataclass
class Segments:
    """Calls of checkpointed segments, and how many tensors that need a gradient or modules several of them used."""

    calls: int = 0
    used: dict[int, int] = field(default_factory=dict)
    references: list[Any] = field(default_factory=list)

    def enter(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Notes a call."""
        self.calls += 1
        parts = {id(each): each for each in _parts((function, arguments, named))}
        for number, each in parts.items():
            self.references.append(each)
            self.used[number] = self.used.get(number, 0) + 1

    @property
    def shared(self) -> int:
        """How many tensors or modules more than one segment used."""
        return sum(count > 1 for count in self.used.values())


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords))
    elif isinstance(value, dict):
        yield from _parts(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _parts(each)
    elif isinstance(getattr(value, "__self__", None), torch.nn.Module):
        yield value.__self__


def _measured(model: Any, loss_of: Loss) -> tuple[MeasuredPass, int]:
    """One pass from a fixed random state, and the bytes that autograd saves for it."""
    torch.manual_seed(3)
    saved = SavedBytes(lambda: [*model.parameters(), *model.buffers()])

    def counted(each: Any) -> torch.Tensor:
        with saved.counting():
            return loss_of(each)

    return run(model, counted), saved.bytes()


def checks(
    plain_model: Any,
    checkpointed_model: Any,
    segments: Segments,
    loss_of: Loss,
    bound: Callable[[], tuple[float, float]],
) -> Iterator[HeadCheck]:
    """Checks of the clauses of recomputation, by a pass of each of two equal models from one random state.

    Args:
        bound: distances of loss and gradient that roundings explain, asked for only where the loss differs, because a
            model takes other kernels, or where several segments use one tensor or module, whose gradient is then added
            in another order.
    """
    plain, plain_bytes = _measured(plain_model, loss_of)
    checkpointed, checkpointed_bytes = _measured(checkpointed_model, loss_of)
    moved, want = abs(plain.loss - checkpointed.loss), repr(plain.loss)
    holds = moved == 0.0
    if not holds:
        limit = bound()[0]
        holds, want = moved <= limit, f"{want} within {limit:.3g}"
    yield judged("recompute.same-loss", "", holds, repr(checkpointed.loss), want)
    differs = same_bits(plain.gradients, checkpointed.gradients)
    apart = distance(plain.gradients, checkpointed.gradients)
    got, want = "the same bits", "the same bits"
    holds = not differs
    if differs:
        got = f"gradients {apart / max(norm(plain.gradients), 1e-300):.3g} of their norm apart, first {differs}"
        if segments.shared:
            limit = bound()[1]
            holds, want = apart <= limit, f"{limit:.3g} apart ({segments.shared} shared by several segments)"
            got = f"gradients {apart:.3g} apart, first {differs}"
    yield judged("recompute.same-gradients", "", holds, got, want)
    got = f"{checkpointed_bytes:,} bytes in {segments.calls} segments"
    freed = segments.calls > 0 and checkpointed_bytes < plain_bytes
    yield judged("recompute.frees-activations", "", freed, got, f"fewer than {plain_bytes:,} bytes")
