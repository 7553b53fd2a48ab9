"""Faults of the scope of a recomputed segment inside another one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from frameworks.reference.core import scope
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.forward import Layers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

_INNER = frozenset({"inner segment"})


@fault("https://github.com/pytorch/pytorch/pull/71169", "recompute.replays-autocast")
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
