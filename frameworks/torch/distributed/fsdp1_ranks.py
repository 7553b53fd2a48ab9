"""FSDP1-specific trainer of one rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Gradients
from frameworks.torch.core.layers import Slot
from frameworks.torch.core.network import Network, parameters_by_name
from frameworks.torch.distributed.fsdp1 import Flat
from frameworks.torch.distributed.ranks import RankPlace, RankTrainer, TorchWorker
from frameworks.torch.training.optimizers import Stepper, averages_of, optimizer_kind, optimizer_state, steppers


class FlatStepper(Stepper):
    """One optimizer over parameters of which this rank holds parts.

    Args:
        spread: the network.
    """

    def __init__(
        self, sharding: Flat, recipe: Recipe, parameters: list[torch.Tensor], undecayed: Collection[int] = ()
    ) -> None:
        self._sharding = sharding
        super().__init__(recipe, parameters, undecayed)

    def made(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        kind, given = optimizer_kind(recipe, ShardedGradScaler)
        return kind(groups, **given)

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The gathered state; every rank must call this."""
        return self._sharding.joined(self.optimizer.state)


class FlatTrainer(RankTrainer):
    """A run's part of one rank of FSDP1."""

    scaler_kind = ShardedGradScaler
    sharding: Flat

    def __init__(self, place: RankPlace, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> None:
        super().__init__(place, model, recipe, weights)
        self._outputs = self.sharding.root

    @property
    def is_sharded(self) -> bool:
        return True

    def _steppers(self) -> list[Stepper]:
        self._take_names()
        self.sharding = self._flat(self.network)
        self.average_slots: dict[str, Slot] = {}
        if self.average is not None and isinstance(self.average.module, Network):
            self.average_slots = parameters_by_name(self.model, self.average.module)
            self.average_spread = self._flat(self.average.module)
            self.average.module = self.average_spread.root
        return steppers(self.recipe, self.slots, partial(FlatStepper, self.sharding))

    def _flat(self, network: Network) -> Flat:
        low, way = self._take_low_format(), self.recipe.way("sharding")
        return Flat(network, self._eager_losses, self.ranks, self.place.mesh, low, way)

    @property
    def root(self) -> nn.Module:
        return self.sharding.root

    def _clip(self, limit: float) -> torch.Tensor:
        return self.sharding.root.clip_grad_norm_(limit)

    def _add(self, gradients: Gradients) -> None:
        if gradients:
            with self.sharding.gathered(writeback=True):
                super()._add(gradients)

    def _add_to(self, gradient: torch.Tensor, value: torch.Tensor) -> None:
        gradient.add_(value)

    # what can be seen

    def master_parameters(self) -> dict[str, Array]:
        with self.sharding.gathered():
            return super().master_parameters()

    def _summed(self) -> dict[str, Array]:
        """Without what gathered tensors show for a parameter that has no gradient while it is sharded."""
        with self.sharding.gathered():
            result = super()._summed()
        return {name: value for name, value in result.items() if name not in self.recipe.frozen}

    def optimizer_state(self) -> dict[str, Array]:
        result = optimizer_state(self.steppers, self.slots)
        if self.average is None:
            return result
        with self.average_spread.gathered():
            return result | averages_of(self.average_slots, self.average)

    # the whole run

    def summed(self) -> dict[str, torch.Tensor]:
        with self.sharding.gathered():
            return {name: gradient.clone() for name, gradient in super().summed().items()}

    def nothing_summed(self, name: str) -> torch.Tensor:
        tensor = self.slots[name].tensor
        return torch.zeros(self.sharding.shapes[tensor], dtype=tensor.dtype)

    def put_summed(self, summed: Mapping[str, torch.Tensor]) -> None:
        for name, slot in self.slots.items():
            slot.tensor.grad = torch.zeros_like(slot.tensor) if name in summed and slot.tensor.numel() else None
        with self.sharding.gathered(writeback=True):
            for name, gradient in summed.items():
                current = self.slots[name].tensor.grad
                if current is not None:
                    current.copy_(gradient)


class Fsdp1Worker(TorchWorker):
    """One rank's process, whose trainers shard parameters or gradients by FSDP1, the rest as `TorchWorker` does."""

    def kind(self, ranks: Ranks) -> type[RankTrainer]:
        return FlatTrainer if ranks.level in ("gradients", "full") else super().kind(ranks)
