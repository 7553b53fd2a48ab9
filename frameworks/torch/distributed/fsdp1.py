"""`FullyShardedDataParallel` (FSDP1): the parameters of a unit as one flat tensor, of which each rank has a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.utils._python_dispatch import TorchDispatchMode

from fixtures.recipe import Ranks
from frameworks.torch.core.network import Network
from frameworks.torch.distributed.rank_ways import OF_FSDP1
from frameworks.torch.distributed.sharding import Losses, WithLosses, is_cast, products, reduce_format

_STRATEGIES = {
    ("full", False): ShardingStrategy.FULL_SHARD,
    ("full", True): ShardingStrategy.HYBRID_SHARD,
    ("gradients", False): ShardingStrategy.SHARD_GRAD_OP,
    ("gradients", True): ShardingStrategy._HYBRID_SHARD_ZERO2,
}
"""By level and whether there are replicas."""


class _Unit(nn.Module):
    """A layer or head that is gathered by itself; FSDP1 gathers for `forward` alone, so this gives Σ p·g as well."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor | None, fed: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        return cast(torch.Tensor, self.inner(x)) if fed is None else products(self.inner, fed)


class _Whole(WithLosses):
    """The root, whose own parameters are those of no unit; without targets it returns the network's outputs."""

    def forward(
        self,
        inputs: torch.Tensor | None,
        targets: Mapping[str, torch.Tensor] | None = None,
        fed: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        if fed is not None:
            return self._fed(fed)
        return self.network(inputs) if targets is None else super().forward(cast(torch.Tensor, inputs), targets)

    def _fed(self, fed: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Σ p·g of every unit by its own forward pass; units without a given gradient are gathered all the same."""
        left = dict(fed)
        total = torch.zeros(())
        for prefix, unit in units(self.network).items():
            own = {name: left.pop(name) for name in list(left) if name.startswith(prefix)}
            total = total + unit(None, {name.removeprefix(prefix): value for name, value in own.items()})
        return total + products(self.network, left)


def units(network: Network) -> dict[str, nn.Module]:
    """The FSDP units of a wrapped network, by the prefix of their parameters' names."""
    places = {f"layers.{index}.": module for index, module in enumerate(network.layers)}
    places |= {f"heads.{name}.": module for name, module in network.heads.items()}
    return {prefix: module for prefix, module in places.items() if isinstance(module, FullyShardedDataParallel)}


def _precision(unit: nn.Module, ranks: Ranks, low: torch.dtype | None) -> dict[str, Any]:
    own = next(unit.parameters()).dtype
    reduced = reduce_format(ranks, own)
    gathered = low if is_cast(unit.inner if isinstance(unit, _Unit) else unit) else None
    # without the default of classes to ignore, which has batch norm's input cast to float32
    precision = MixedPrecision(param_dtype=gathered, reduce_dtype=reduced, _module_classes_to_ignore=())
    return {"mixed_precision": None if reduced == own and gathered is None else precision}


class Flat:
    """FSDP1 of each top-level layer that has parameters, and of the root, which holds the heads.

    Parameters keep their identity; between passes each is what this rank holds of it, flat, which may be nothing. A
    flat tensor has one format, so heads of several formats are units of their own. Tied weights need one unit for all
    their uses: a layer whose weight a head has too belongs to the root.

    Attributes:
        shapes: of the parameters when they are whole.
    """

    def __init__(
        self,
        network: Network,
        losses: Losses,
        ranks: Ranks,
        mesh: DeviceMesh,
        low: torch.dtype | None = None,
        way: str = "",
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
        self._reduce_scatters = _ReduceScatters()

    def losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return cast(list[torch.Tensor], self.root(inputs, targets))

    def fed(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return cast(torch.Tensor, self.root(None, None, gradients))

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        if last:
            with self._reduce_scatters:
                yield
        else:
            with self.root.no_sync():
                yield

    @contextmanager
    def gathered(self, *, writeback: bool = False) -> Iterator[None]:
        """Within the context, parameters and gradients are gathered; with `writeback` each rank keeps its part of a
        change."""
        with FullyShardedDataParallel.summon_full_params(self.root, writeback=writeback, with_grads=True):
            yield

    def joined(self, parts: Mapping[torch.Tensor, Mapping[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
        """Gathered state of sharded parameters, such as moments, by parameter; every rank must call this.

        A rank that has no part of a parameter holds nothing for it. Scalars are those of the first rank that has them.
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
        """Reductions do not say whose they are: each counts for as many parameters as a unit has on average."""
        count, self._reduce_scatters.count = self._reduce_scatters.count, 0
        parameters = len(list(self.root.parameters()))
        return count * parameters // (len(units(self._network)) + 1)


def _join(pieces: list[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    return pieces[0] if pieces[0].ndim == 0 else torch.cat(pieces).reshape(shape)


class _ReduceScatters(TorchDispatchMode):
    """Counts the gradients that are reduced within the context; FSDP1's hooks replace its reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.c10d._reduce_scatter_base_.default
        return func(*args, **(kwargs or {}))
