"""Gradient checkpointing: the same loss and gradients, from fewer saved bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from frameworks.torch.core.saved_bytes import SavedBytes
from frameworks.torch.stacks.heads.checks import HeadCheck, judged, left_out
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


@dataclass
class InnerBytes:
    """Bytes that autograd saves within segments, without what checkpointing keeps: arguments, results, parameters."""

    model: Any
    size: int = 0

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Calls a segment without checkpointing, and counts."""
        storages: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda saved: saved):
            result = function(*arguments, **named)
        kept = (*self.model.parameters(), *self.model.buffers(), *_tensors((arguments, named, result)))
        for tensor in kept:
            storages.pop(tensor.untyped_storage().data_ptr(), None)
        self.size += sum(storages.values())
        return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


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
    inner_bytes: Callable[[], int],
) -> Iterator[HeadCheck]:
    """Checks of the clauses of recomputation, by a pass of each of two equal models from one random state.

    Args:
        bound: distances of loss and gradient that roundings explain, asked for only where the loss differs, because a
            model takes other kernels, or where several segments use one tensor or module, whose gradient is then added
            in another order.
        inner_bytes: bytes that checkpointing can free, asked for only where it frees none.
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
    clause, got = "recompute.frees-activations", f"{checkpointed_bytes:,} bytes in {segments.calls} segments"
    freed = segments.calls > 0 and checkpointed_bytes < plain_bytes
    if segments.calls and not freed and not inner_bytes():
        yield left_out(clause, "", "nothing is to be freed: no segment saves more than its inputs and results")
        return
    yield judged(clause, "", freed, got, f"fewer than {plain_bytes:,} bytes")
