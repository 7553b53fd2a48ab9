"""Data parallelism of a network: replicas with reduced gradients, shards that are gathered for use, and meshes."""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from operator import attrgetter
from types import MethodType
from typing import Any, Protocol, TypeAlias

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from fixtures.recipe import Ranks
from frameworks.contract import BlockWeights, Capability, MeshCase, MeshLayout, MeshUpdate, PipelineCase, Unsupported
from frameworks.torch.core.layers import Network
from frameworks.torch.core.settings import DTYPES

OF_DDP: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "all-used": {"find_unused_parameters": False},
    "bucket-view": {"gradient_as_bucket_view": True},
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "static-graph": {"static_graph": True},
    "no-hook": {"find_unused_parameters": True},
}
"""Options of `DistributedDataParallel`, for the technique "data-parallel"."""

OF_FSDP1: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "late-prefetch": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "forward-prefetch": {"forward_prefetch": True},
    "no-limit": {"limit_all_gathers": False},
}
"""Options of `FullyShardedDataParallel`, for the technique "sharding"."""

OF_ZERO: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "overlapped": {"overlap_comm": True},
    "no-buffer": {"contiguous_gradients": False},
    "overlapped-no-buffer": {"overlap_comm": True, "contiguous_gradients": False},
    "all-reduced": {"reduce_scatter": False},
    "small-reductions": {"reduce_bucket_size": 16},
}
"""Entries of "zero_optimization" in DeepSpeed's configuration, for the technique "sharding"."""


Losses = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], list[torch.Tensor]]
Reduced: TypeAlias = torch.futures.Future[torch.Tensor]


class ShardedNetwork(Protocol):
    """One rank's handle of a network that several ranks train."""

    def losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Forward of this rank's part of a micro-batch, so that the backward pass reduces gradients."""

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Σ p·g over the given parameters, by their names in the network, whose backward pass reduces them alike."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """The context of a micro-batch's forward and backward: gradients are reduced with the last one only."""

    def reductions(self) -> int:
        """The number of gradients that this rank has reduced since the last call."""


def reduce_format(ranks: Ranks, own: torch.dtype) -> torch.dtype:
    """The format of the reduction of gradients: the wider one of the recipe's format and the gradients' own."""
    asked = DTYPES[ranks.reduce]
    return asked if asked.itemsize < torch.float32.itemsize else torch.promote_types(asked, own)


def products(module: nn.Module, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Σ p·g over the parameters named in `gradients`, in float32 or wider as losses are."""
    total = torch.zeros(())
    for name, gradient in gradients.items():
        parameter: torch.Tensor = attrgetter(name)(module)  # FSDP1 replaces the `Parameter` by a view during a pass
        total = total + (parameter.to(gradient.dtype) * gradient).sum()
    return total


def products_by_unit(
    network: nn.Module,
    units: Mapping[str, nn.Module],
    gradients: Mapping[str, torch.Tensor],
    product: Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor],
) -> torch.Tensor:
    """The sum of `products` over the units, each by its own pass; units without a given gradient are gathered too."""
    remaining = dict(gradients)
    total = torch.zeros(())
    for prefix, unit in units.items():
        own = {name: remaining.pop(name) for name in list(remaining) if name.startswith(prefix)}
        total = total + product(unit, {name.removeprefix(prefix): value for name, value in own.items()})
    return total + products(network, remaining)


class CountedReductions(TorchDispatchMode):
    """Counts the gradients that are reduced within the context. A hook would replace the reduction, so it cannot count.

    Attributes:
        entries: number of reduced entries.
        scattered: number of tensors reduced by reduce-scatter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries = self.scattered = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func._schema.name
        if kind in ("c10d::allreduce_", "c10d::reduce_"):
            self.entries += sum(tensor.numel() for tensor in args[0])
        elif kind == "c10d::_reduce_scatter_base_":
            self.entries += args[1].numel()
            self.scattered += 1
        elif kind == "c10d::reduce_scatter_":
            self.entries += sum(tensor.numel() for tensors in args[1] for tensor in tensors)
        return func(*args, **(kwargs or {}))


class WithLosses(nn.Module):
    """The network and its losses as one module, since DDP reduces what its outputs depend on."""

    def __init__(self, network: Network, losses: Losses) -> None:
        super().__init__()
        self.network = network
        self._losses = losses

    def forward(
        self,
        inputs: torch.Tensor,
        targets: Mapping[str, torch.Tensor] | None = None,
        fed: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        """The losses; the outputs if there are no targets; Σ p·g alone if `fed` has gradients."""
        if fed is not None:
            return [self.sum_products(fed)]
        return self.network(inputs) if targets is None else self._losses(inputs, targets)

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Σ p·g over the parameters named in `gradients`."""
        return products(self.network, gradients)


class Replicated:
    """`DistributedDataParallel`: every rank holds the whole network.

    Args:
        unused: DDP searches the graph of the losses for parameters that a backward pass leaves out.
        way: a name of `OF_DDP`.
    """

    def __init__(self, network: Network, losses: Losses, ranks: Ranks, *, unused: bool, way: str) -> None:
        options = {"find_unused_parameters": unused, **OF_DDP[way]}
        self._module = DistributedDataParallel(WithLosses(network, losses), **options)
        self._reducer: _Reducer | None = None
        if way == "no-hook":
            return
        self._reducer = reducer = _Reducer(ranks)
        # a lambda: DDP refuses text annotations, and a bound method would keep this object alive
        self._module.register_comm_hook(None, lambda _, bucket: reducer.reduce_gradients(bucket))

    def losses(self, inputs: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return self._module(inputs, targets)

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._module(torch.empty(0), {}, gradients)[0]

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with self._module.no_sync():
                yield

    def reductions(self) -> int:
        """The number of reduced gradients; raises Unsupported (RANKS_COLLECTIVES) without a hook."""
        if self._reducer is None:
            raise Unsupported(Capability.RANKS_COLLECTIVES, "a communication hook alone can count DDP's reductions")
        count, self._reducer.count = self._reducer.count, 0
        return count


class _Reducer:
    """Computes the mean of a bucket over the ranks, by a hook of PyTorch's where there is one.

    Attributes:
        count: how many parameters' gradients were in the buckets.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.count = 0
        self._ranks = ranks

    def reduce_gradients(self, bucket: distributed.GradBucket) -> Reduced:
        """A future of the bucket's mean."""
        self.count += len(bucket.parameters())
        own = bucket.buffer().dtype
        wanted = reduce_format(self._ranks, own)
        if wanted == own:
            return default_hooks.allreduce_hook(None, bucket)
        if wanted == torch.bfloat16:
            return default_hooks.bf16_compress_hook(None, bucket)
        return _reduced_in(wanted, bucket)


def _reduced_in(dtype: torch.dtype, bucket: distributed.GradBucket) -> Reduced:
    """The mean of a bucket over the ranks, added up in another format, as PyTorch's compressing hooks do it."""
    buffer = bucket.buffer()
    cast_buffer = buffer.to(dtype).div_(distributed.get_world_size())
    reduced = distributed.all_reduce(cast_buffer, async_op=True).get_future()
    return reduced.then(lambda done: buffer.copy_(done.value()[0]))


class Sharded:
    """`fully_shard` (FSDP2) of each top-level layer that has parameters, and of the root, which holds the heads.

    Every parameter becomes a `DTensor`, whose shards are rows, ceil(rows / ranks) of them on each rank but the last.
    """

    def __init__(
        self, network: Network, losses: Losses, ranks: Ranks, mesh: DeviceMesh, *, low: torch.dtype | None, way: str
    ) -> None:
        self.losses = losses
        self._network = network
        self._reductions = 0
        self._hooked: Counter[int] = Counter()
        self._counts = hasattr(FSDPModule, "set_all_reduce_hook")
        self._units = shard(network, ranks, mesh, low=low, way=way)
        for index, unit in enumerate(self._units.values()):
            unit.products = MethodType(self._products_of_root if unit is network else products, unit)
            register_fsdp_forward_method(unit, "products")
            if self._counts:
                unit.set_all_reduce_hook(partial(self._note, index))

    def sum_products(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._network.products(gradients)

    def _products_of_root(self, network: nn.Module, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        inner = {prefix: unit for prefix, unit in self._units.items() if unit is not network}
        return products_by_unit(network, inner, gradients, lambda unit, own: unit.products(own))

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        root = self._network
        root.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)
            self._count()

    def reductions(self) -> int:
        """Raises Unsupported (RANKS_COLLECTIVES) without a hook."""
        if not self._counts:
            raise Unsupported(Capability.RANKS_COLLECTIVES, "this release of PyTorch has no hook of fully_shard")
        count, self._reductions = self._reductions, 0
        return count

    def _note(self, index: int, reduced: torch.Tensor) -> None:
        self._hooked[index] += 1

    def _count(self) -> None:
        """Counts a reduction: the hook observes one flat tensor of all gradients of a unit."""
        counted: set[torch.Tensor] = set()
        for index, unit in enumerate(self._units.values()):
            own = {parameter for parameter in unit.parameters() if parameter.grad is not None} - counted
            self._reductions += self._hooked[index] * len(own)
            counted |= own
        self._hooked.clear()


def shard(
    network: Network, ranks: Ranks, mesh: DeviceMesh, *, low: torch.dtype | None, way: str
) -> dict[str, nn.Module]:
    """Shards the network in place; its units by the prefix of their parameters' names, the root last.

    At level "gradients" parameters stay gathered between forward and backward. Tied weights need one unit for all their
    uses: a layer whose weight a head has too belongs to the root.

    Args:
        low: format of gathered parameters, None for their own; batch norm and float64 heads keep theirs.
        way: name of the way of the technique "sharding".
    """

    def by_columns(parameter: nn.Parameter) -> Shard:
        return Shard(int(parameter.ndim > 1 and parameter.shape[1] % ranks.shards == 0))

    units: dict[str, nn.Module] = {
        f"layers.{index}.": layer
        for index, layer in enumerate(network.layers)
        if index not in network.tied
        and any(True for _ in layer.parameters())
        and (way != "whole" or not is_cast(layer))
    }
    if low is not None:
        units |= {f"heads.{name}.": head for name, head in network.heads.items() if not is_cast(head)}
    units[""] = network
    for prefix, unit in units.items():
        own = network.heads if prefix == "" else unit
        dtype = next(own.parameters()).dtype
        gathered = low if prefix == "" or is_cast(own) else None
        reduced = reduce_format(ranks, dtype)
        policy = MixedPrecisionPolicy(
            param_dtype=gathered,
            reduce_dtype=reduced if gathered is not None or reduced != dtype else None,
            cast_forward_inputs=False,
        )
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=ranks.level == "full",
            mp_policy=policy,
            shard_placement_fn=by_columns if way == "columns" else None,
        )
    if way == "prefetch":
        for unit, after in pairwise([network, *units.values()][:-1]):
            unit.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([unit])
    elif way == "unused-too":
        network.set_reduce_scatter_unused_params(True)
    return units


def is_cast(module: nn.Module) -> bool:
    """Returns whether a unit is gathered in a low format: batch norm takes no low weights with wide statistics."""
    wide = any(parameter.dtype == torch.float64 for parameter in module.parameters())
    return not wide and not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def resident_bytes(tensor: torch.Tensor) -> int:
    """Bytes that this rank holds of a tensor."""
    return local(tensor).numel() * tensor.element_size()


def part_of(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor that is sharded like `like`."""
    if not isinstance(like, DTensor):
        return value
    mesh = like.device_mesh
    sharding = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return sharding.redistribute(placements=like.placements)


_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def make_block(weights: BlockWeights) -> nn.Sequential:
    """The undivided block."""
    width, hidden = weights["up.weight"].shape
    norm, up, down = nn.RMSNorm(width, eps=0.0), nn.Linear(width, hidden), nn.Linear(hidden, width)
    block = nn.Sequential(OrderedDict(norm=norm, up=up, relu=nn.ReLU(), down=down))
    block.load_state_dict({name: torch.from_numpy(value.T.copy()) for name, value in weights.items()})
    return block


def divide(layout: MeshLayout, weights: BlockWeights) -> nn.Sequential:
    """The block, divided by a layout's plan over all ranks; "two-meshes" divides the rows alone among several."""
    block, count = make_block(weights), distributed.get_world_size()
    up, down = parallel.ColwiseParallel(), parallel.RowwiseParallel()
    if layout == "two-meshes":
        grid = init_device_mesh("cpu", (count, 1), mesh_dim_names=("data", "model"))
        parallel.parallelize_module(block, grid["model"], {"up": up, "down": down})
        return fully_shard(block, mesh=grid["data"])
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("model",))
    if layout == "sequence":
        up = parallel.ColwiseParallel(input_layouts=Shard(1))
        down = parallel.RowwiseParallel(output_layouts=Replicate())
        whole = parallel.PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
        parallel.parallelize_module(block, mesh, whole)
        parallel.parallelize_module(block, mesh, {"norm": parallel.SequenceParallel()})
    return parallel.parallelize_module(block, mesh, {"up": up, "down": down})


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Half the sum of squared errors."""
    return 0.5 * (outputs - targets).square().sum()


def gather(value: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be divided."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach()


def read_axes(block: nn.Module) -> dict[str, int]:
    """The divided axis of each parameter along the mesh of `up` and `down`."""
    axes: dict[str, int] = {}
    for name, value in block.named_parameters():
        if isinstance(value, DTensor) and (value.device_mesh.mesh_dim_names or ("",))[-1] == "model":
            placement = value.placements[-1]
            axes |= {name: value.ndim - 1 - placement.dim} if isinstance(placement, Shard) else {}
    return axes


def update(case: MeshCase) -> tuple[MeshUpdate, ...]:
    """This rank's view of an update."""
    block, norm, refusal = divide(case.layout, case.weights), None, ""
    placements = {"build": read_axes(block)}
    data = distributed.get_world_size() if case.layout == "two-meshes" else 1
    inputs, targets = (torch.from_numpy(a).chunk(data)[distributed.get_rank() % data] for a in case.samples)
    optimizer = torch.optim.SGD(block.parameters(), lr=1.0)
    (half_square(block(inputs), targets) / len(inputs)).backward()
    if case.clip is not None:
        try:
            norm = gather(nn.utils.clip_grad_norm_(block.parameters(), case.clip)).item()
        except RuntimeError as error:
            refusal = f"RuntimeError: {error}"[:200]
    if not refusal:
        optimizer.step()
    placements["update"] = read_axes(block)
    if case.folder is not None:
        checkpoint.save(block.state_dict(), checkpoint_id=case.folder)
        block = divide(case.layout, case.weights)
        state = block.state_dict()
        checkpoint.load(state, checkpoint_id=case.folder)
        block.load_state_dict(state)
        placements["reload"] = read_axes(block)
    after = {name: gather(value).numpy().T.copy() for name, value in block.named_parameters()}
    return (MeshUpdate(after, norm, refusal, placements),)


def reports_unknown_name(weights: BlockWeights) -> bool:
    """Whether a plan that names no module raises or warns."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        parallel.parallelize_module(make_block(weights), mesh, {"upp": parallel.ColwiseParallel()})
    return bool(reported)


def pipeline_gradients(case: PipelineCase) -> BlockWeights:
    """The gradients of this rank's stage."""
    rank, block = distributed.get_rank(), make_block(case.weights)
    module = block[:3] if rank == 0 else block[3:]

    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return half_square(outputs, targets) / (len(outputs) if case.loss == "mean" else 1)

    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    options: dict[str, Any] = {} if case.scaled else {"scale_grads": False}
    schedule = _SCHEDULES[case.schedule](stage, case.micro_batches, loss_fn=loss_of, **options)
    for inputs, targets in case.steps:
        if rank == 0:
            schedule.step(torch.from_numpy(inputs))
        else:
            schedule.step(target=torch.from_numpy(targets))
    return {name: value.grad.numpy().T.copy() for name, value in module.named_parameters() if value.grad is not None}
