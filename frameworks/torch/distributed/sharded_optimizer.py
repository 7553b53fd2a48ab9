"""An optimizer with sharded state: `ZeroRedundancyOptimizer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import distributed
from torch.distributed.optim import ZeroRedundancyOptimizer

from fixtures.recipe import Recipe
from frameworks.torch.training.optimizers import Stepper, optimizer_kind


class ShardedStepper(Stepper):
    """One optimizer whose state is sharded by whole parameters: `ZeroRedundancyOptimizer`."""

    def __init__(
        self,
        group: distributed.ProcessGroup,
        recipe: Recipe,
        parameters: list[torch.Tensor],
        undecayed: Collection[int] = (),
    ) -> None:
        self._group = group
        super().__init__(recipe, parameters, undecayed)

    def made(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        kind, given = optimizer_kind(recipe)
        self._sharded = ZeroRedundancyOptimizer(groups, optimizer_class=kind, process_group=self._group, **given)
        return self._sharded

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {parameters[index]: values for index, values in self.state_dict()["state"].items()}

    def parts(self) -> dict[str, Any]:
        return {**super().parts(), "optimizer": self}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's gathered state; every rank must call this."""
        self._sharded.consolidate_state_dict(to=0)
        first = distributed.get_rank(self._group) == 0
        message: list[Any] = [self._sharded.state_dict() if first else None]
        distributed.broadcast_object_list(message, src=distributed.get_global_rank(self._group, 0), group=self._group)
        whole: dict[str, Any] = message[0]
        return whole

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes this rank's part of a gathered state."""
        self._sharded.load_state_dict(state)

    @property
    def own_state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """This rank's state, by parameter."""
        state: Mapping[torch.Tensor, Mapping[str, Any]] = self._sharded.optim.state
        return state
