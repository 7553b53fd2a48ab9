"""Faults of the scope of a recomputed segment inside another one, and of operations on more than vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor, rounded
from frameworks.reference.training.forward import Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", component="operations", clauses=("autocast.sum-is-wide",))
class SumsOfMatricesAreLow(Operations):
    """In a scope the sum or mean of a matrix is computed in the format of its values, and that of a vector is wide."""

    def apply(self, op: str, function: Callable[..., Any], *operands: Tensor, keep: str = "") -> Tensor:
        if op not in {"sum", "mean"} or not scope.current().active or len(operands[0].shape) < 2:
            return super().apply(op, function, *operands, keep=keep)
        own = operands[0].format
        value = function(operands[0].value, lambda v, n=1: rounded(v, self.rounding, own, n))
        return Tensor(rounded(value, self.rounding, own), own)


_INNER = frozenset({"inner segment"})


@fault("https://github.com/pytorch/pytorch/pull/71169", component="recompute", clauses=("recompute.replays-autocast",))
class InnerReplayLosesTheScope(ReferenceTrainer):
    """The replay of a segment inside a recomputed one does not open the scope of its forward pass."""

    def _recomputed(
        self, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        if index is not None:
            return super()._recomputed(layers, parameters, x, depth, index)
        now = scope.current()
        with scope.opened(replace(now, wide=now.wide | _INNER)):
            return super()._recomputed(layers, parameters, x, depth, index)

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        return nullcontext() if former.wide & _INNER else super().replay_precision(former)
