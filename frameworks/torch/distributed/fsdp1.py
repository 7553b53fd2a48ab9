"""`FullyShardedDataParallel` (FSDP1): the parameters of a unit as one flat tensor, of which each rank has a part.

The last classes are the trainer and the process of one of its ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy

from fixtures.arrays import Array
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Gradients
from frameworks.torch.core.layers import Network, Slot, parameters_by_name
from frameworks.torch.distributed.ranks import RankTrainer, TorchWorker
from frameworks.torch.distributed.sharding import (
    OF_FSDP1,
    CountedReductions,
    Losses,
    WithLosses,
    is_cast,
    products,
    products_by_unit,
    reduce_format,
)
from frameworks.torch.training.optimizers import Stepper, averages_of, optimizer_kind, steppers

_STRATEGIES = {
    ("full", False): ShardingStrategy.FULL_SHARD,
    ("full", True): ShardingStrategy.HYBRID_SHARD,
    ("gradients", False): ShardingStrategy.SHARD_GRAD_OP,
    ("gradients", True): ShardingStrategy._HYBRID_SHARD_ZERO2,
}
"""Sharding strategy by level and by whether there are replicas."""


class _Unit(nn.Module):
    """A layer or head as an FSDP unit. FSDP1 gathers parameters in `forward` only, so `forward` also computes Σ p·g."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor | None, fed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        return self.inner(x) if fed is None else products(self.inner, fed)


class _Whole(WithLosses):
    """The root unit; its own parameters are those outside all other units."""

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return products_by_unit(self.network, units(self.network), gradients, lambda unit, own: unit(None, own))


def units(network: Network) -> dict[str, nn.Module]:
    """The FSDP units of a wrapped network, by the prefix of their parameters' names."""
    places = {f"layers.{index}.": module for index, module in enumerate(network.layers)}
    places |= {f"heads.{name}.": module for name, module in network.heads.items()}
    return {prefix: module for prefix, module in places.items() if isinstance(module, FullyShardedDataParallel)}


def _precision(unit: nn.Module, ranks: Ranks, low: torch.dtype | None) -> dict[str, Any]:
    own = next(unit.parameters()).dtype
    reduced = reduce_format(ranks, own)
    gathered = low if is_cast(unit.inner if isinstance(unit, _Unit) else unit) else None
    # no ignored classes: the default casts the input of batch norm to float32
    precision = MixedPrecision(param_dtype=gathered, reduce_dtype=reduced, _module_classes_to_ignore=())
    return {"mixed_precision": None if reduced == own and gathered is None else precision}


class Flat:
    """FSDP1 of each top-level layer that has parameters, and of the root, which holds the heads.

    Parameters keep their identity; between passes each is this rank's flat part, which may be empty. A flat tensor has
    one format, so heads of several formats are separate units. All uses of a tied weight need one unit: a layer that
    shares its weight with a head belongs to the root.

    Attributes:
        shapes: shape of each whole parameter.
    """

    def __init__(
        self, network: Network, losses: Losses, ranks: Ranks, mesh: DeviceMesh, *, low: torch.dtype | None, way: str
    ) -> None:
        for index, layer in enumerate(network.layers):
            if index not in network.tied and any(True for _ in layer.parameters()):
                network.layers[index] = _Unit(layer)
        if len({parameter.dtype for parameter in network.heads.parameters()}) > 1:
            for name, head in network.heads_built.items():
                network.heads[name] = _Unit(head)
        whole = _Whole(network, losses)
        self.shapes = {parameter: parameter.shape for parameter in whole.parameters()}
        self._shards = mesh.get_group("shard")
        self.root = FullyShardedDataParallel(
            whole,
            auto_wrap_policy=CustomPolicy(lambda module: isinstance(module, _Unit) and _precision(module, ranks, low)),
            device_mesh=mesh,
            sharding_strategy=_STRATEGIES[ranks.level, mesh.ndim > 1],
            device_id=torch.device("cpu"),
            use_orig_params=True,
            **_precision(network.heads, ranks, low),
            **OF_FSDP1[way],
        )
        network.call_in_place()
        self._network = network
        self._reduced = CountedReductions()

    def losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return self.root(inputs, targets)

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.root(torch.empty(0), {}, gradients)[0]

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        if last:
            with self._reduced:
                yield
        else:
            with self.root.no_sync():
                yield

    @contextmanager
    def gather_parameters(self, *, writeback: bool = False) -> Iterator[None]:
        """Within the context, parameters and gradients are gathered; `writeback`: each rank stores its part of
        a change."""
        with FullyShardedDataParallel.summon_full_params(self.root, writeback=writeback, with_grads=True):
            yield

    def gather_state(self, parts: Mapping[torch.Tensor, Mapping[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
        """Gathered state of sharded parameters, such as moments, by parameter; every rank must call this.

        A rank without a part of a parameter has no state for it. Scalars are those of the first rank that has them.
        """
        own = [parts.get(parameter, {}) for parameter in self.shapes]
        every: list[Any] = [None] * distributed.get_world_size(self._shards)
        distributed.all_gather_object(every, own, group=self._shards)
        whole = {}
        for (parameter, shape), states in zip(self.shapes.items(), zip(*every, strict=True), strict=True):
            names = dict.fromkeys(name for of_rank in states for name in of_rank)
            pieces = {name: [of_rank[name] for of_rank in states if of_rank.get(name) is not None] for name in names}
            whole[parameter] = {name: _join(result, shape) for name, result in pieces.items() if result}
        return {parameter: values for parameter, values in whole.items() if values}

    def reductions(self) -> int:
        """An estimate of the reduced gradients: each reduction counts as the mean number of parameters of a unit."""
        count, self._reduced.scattered = self._reduced.scattered, 0
        parameters = len(list(self.root.parameters()))
        return count * parameters // (len(units(self._network)) + 1)


def _join(pieces: list[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    return pieces[0] if pieces[0].ndim == 0 else torch.cat(pieces).reshape(shape)


class FlatStepper(Stepper):
    """One optimizer over this rank's parts of the parameters."""

    def __init__(self, sharding: Flat, *args: Any) -> None:
        self._sharding = sharding
        super().__init__(*args)

    def make_optimizer(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        kind, options = optimizer_kind(recipe, ShardedGradScaler)
        return kind(groups, **options)

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The gathered state; every rank must call this."""
        return self._sharding.gather_state(self.optimizer.state)


class FlatTrainer(RankTrainer):
    """One rank's part of a run with FSDP1."""

    scaler_kind = ShardedGradScaler
    sharding: Flat

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outputs = self.sharding.root

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
        return Flat(network, self._eager_losses, self.ranks, self.mesh, low=low, way=way)

    @property
    def root(self) -> nn.Module:
        return self.sharding.root

    def _clip(self, limit: float) -> torch.Tensor:
        return self.sharding.root.clip_grad_norm_(limit)

    def _add_gradients(self, gradients: Gradients) -> None:
        if gradients:
            with self.sharding.gather_parameters(writeback=True):
                super()._add_gradients(gradients)

    # readings

    def master_parameters(self) -> dict[str, Array]:
        with self.sharding.gather_parameters():
            return super().master_parameters()

    def _read_gradients(self) -> dict[str, Array]:
        """The gradients, without those that gathering adds to parameters that have none while sharded."""
        with self.sharding.gather_parameters():
            result = super()._read_gradients()
        return {name: value for name, value in result.items() if name not in self.recipe.frozen}

    def _averages(self) -> dict[str, Array]:
        if self.average is None:
            return {}
        with self.average_spread.gather_parameters():
            return averages_of(self.average_slots, self.average)

    # the whole run

    def open_gradients(self) -> dict[str, torch.Tensor]:
        with self.sharding.gather_parameters():
            return {name: gradient.clone() for name, gradient in super().open_gradients().items()}

    def zero_gradient(self, name: str) -> torch.Tensor:
        tensor = self.slots[name].tensor
        return torch.zeros(self.sharding.shapes[tensor], dtype=tensor.dtype)

    def put_gradients(self, summed: Mapping[str, torch.Tensor]) -> None:
        for name, slot in self.slots.items():
            slot.tensor.grad = torch.zeros_like(slot.tensor) if name in summed and slot.tensor.numel() else None
        with self.sharding.gather_parameters(writeback=True):
            for name, gradient in summed.items():
                current = self.slots[name].tensor.grad
                if current is not None:
                    current.copy_(gradient)


class Fsdp1Worker(TorchWorker):
    """One rank's process, whose trainers shard parameters or gradients by FSDP1, the rest as `TorchWorker` does."""

    def kind(self, ranks: Ranks) -> type[RankTrainer]:
        return FlatTrainer if ranks.level in ("gradients", "full") else super().kind(ranks)
