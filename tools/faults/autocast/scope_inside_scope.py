"""Faults of precision scopes that are inside another one, and of operations on more than vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from fixtures.recipe import Precision
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor, rounded
from frameworks.reference.training.forward import Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("", component="scope", clauses=("autocast.scope-nests",))
class InnerScopeInheritsLists(ReferenceFramework):
    """A scope inside one of the same precision keeps the outer one's lists of operations where it has none."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        if enabled and outer.precision == precision:
            wide, low = tuple(wide) or tuple(outer.wide), tuple(low) or tuple(outer.low)
        return super().autocast(precision, enabled=enabled, wide=wide, low=low)


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
