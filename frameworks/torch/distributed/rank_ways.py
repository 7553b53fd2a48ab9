"""Options of PyTorch's data parallelism and sharding, by the names in `ways.toml`; "" is the default."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import nn
from torch.distributed.fsdp import BackwardPrefetch
from torch.distributed.tensor import Shard

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


def placement(way: str, count: int) -> Callable[[nn.Parameter], Shard] | None:
    """Which axis of a parameter `fully_shard` divides among `count` ranks; None for rows."""
    if way != "columns":
        return None
    return lambda parameter: Shard(int(parameter.ndim > 1 and parameter.shape[1] % count == 0))


def configure(way: str, units: Sequence[nn.Module]) -> None:
    """Sets options of sharded units, the root first and the others in forward order."""
    root, *layers = (unit for unit in units)
    match way:
        case "prefetch":
            for unit, after in pairwise([root, *layers]):
                unit.set_modules_to_forward_prefetch([after])
                after.set_modules_to_backward_prefetch([unit])
        case "unused-too":
            root.set_reduce_scatter_unused_params(True)
