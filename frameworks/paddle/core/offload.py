"""Activation offload: what Paddle's autograd saves, in files."""

from pathlib import Path
from typing import Any

import paddle
from paddle.autograd import saved_tensors_hooks
from paddle.distributed.fleet.utils import recompute
from paddle.distributed.sharding import group_sharded_parallel

from fixtures.recipe import Offload
from frameworks.base.activations import OffloadedActivations, SavedActivations, TensorFiles

ONE_PAIR = "saved_tensors_hooks takes one pair at a time, and recompute(use_reentrant=False) opens its own"
"""Why activations that are recomputed by hooks cannot be offloaded by hooks."""


def activations_of(offload: Offload | None) -> SavedActivations:
    """The offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    if offload is None:
        return SavedActivations()
    files = TensorFiles(offload.folder, _save, _load, ".pdtensor")
    return OffloadedActivations(saved_tensors_hooks, files.pack, files.unpack, _size)


def _save(tensor: Any, path: Path) -> None:
    paddle.save({"value": tensor.detach(), "stop_gradient": tensor.stop_gradient}, str(path))


def _load(path: Path) -> Any:
    """The tensor, with a gradient if it had one: reentrant recomputation asks its saved inputs."""
    saved = paddle.load(str(path))
    saved["value"].stop_gradient = saved["stop_gradient"]
    return saved["value"]


def _size(tensor: Any) -> int:
    return int(tensor.size) * int(tensor.element_size())


def hooks_nest() -> bool:
    """Whether hooks may be opened inside others, as recomputation by hooks would."""
    with saved_tensors_hooks(lambda value: value, lambda value: value):
        layer = paddle.nn.Linear(2, 2)
        recompute(layer, paddle.ones([1, 2]), use_reentrant=False).sum().backward()
    return layer.weight.grad is not None


def shards_leave() -> bool:
    """Whether `group_sharded_parallel`, the only call that offloads parameters and moments, takes this device."""
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    group_sharded_parallel(layer, optimizer, "p_g_os", offload=True)
    return True
