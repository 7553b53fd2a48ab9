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


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


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


@dataclass(frozen=True)
class Recomputation:
    """Passes of equal models from one random state, without and with checkpointing."""

    plain: MeasuredPass
    checkpointed: MeasuredPass
    plain_bytes: int
    checkpointed_bytes: int
    segments: Segments


def measured(plain: Any, checkpointed: Any, segments: Segments, loss_of: Loss) -> Recomputation:
    """One pass of each model."""
    passes, sizes = [], []
    for model in (plain, checkpointed):
        torch.manual_seed(3)
        saved = SavedBytes(partial(_tensors, model))

        def counted(each: Any, saved: SavedBytes = saved) -> torch.Tensor:
            with saved.counting():
                return loss_of(each)

        passes.append(run(model, counted))
        sizes.append(saved.bytes())
    return Recomputation(passes[0], passes[1], sizes[0], sizes[1], segments)


def checks(passes: Recomputation, bound: Callable[[], tuple[float, float]]) -> Iterator[HeadCheck]:
    """Checks of the clauses of recomputation.

    Args:
        bound: distances of loss and gradient that roundings explain, asked for only where the loss differs, because a
            model takes other kernels, or where several segments use one tensor or module, whose gradient is then added
            in another order.
    """
    moved, want = abs(passes.plain.loss - passes.checkpointed.loss), repr(passes.plain.loss)
    holds = moved == 0.0
    if not holds:
        limit = bound()[0]
        holds, want = moved <= limit, f"{want} within {limit:.3g}"
    yield judged("recompute.same-loss", "", holds, repr(passes.checkpointed.loss), want)
    differs = same_bits(passes.plain.gradients, passes.checkpointed.gradients)
    apart = distance(passes.plain.gradients, passes.checkpointed.gradients)
    got, want = "the same bits", "the same bits"
    holds = not differs
    if differs:
        got = f"gradients {apart / max(norm(passes.plain.gradients), 1e-300):.3g} of their norm apart, first {differs}"
        if passes.segments.shared:
            limit = bound()[1]
            holds, want = apart <= limit, f"{limit:.3g} apart ({passes.segments.shared} shared by several segments)"
            got = f"gradients {apart:.3g} apart, first {differs}"
    yield judged("recompute.same-gradients", "", holds, got, want)
    got = f"{passes.checkpointed_bytes:,} bytes in {passes.segments.calls} segments"
    freed = passes.segments.calls > 0 and passes.checkpointed_bytes < passes.plain_bytes
    yield judged("recompute.frees-activations", "", freed, got, f"fewer than {passes.plain_bytes:,} bytes")
