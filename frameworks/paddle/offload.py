"""Activation offload: what Paddle's autograd saves, in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from paddle.autograd import saved_tensors_hooks
from paddle.distributed.sharding import group_sharded_parallel

from fixtures.recipe import Offload
from frameworks.base.activations import Activations, OffloadedActivations, TensorFiles


def activations_of(offload: Offload | None) -> Activations:
    """The offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    if offload is None:
        return Activations()
    files = TensorFiles(offload.folder, _save, _load, ".pdtensor")
    return OffloadedActivations(saved_tensors_hooks, files.pack, files.unpack, _size)


def _save(tensor: Any, path: Path) -> None:
    paddle.save(tensor.detach(), str(path))


def _load(path: Path) -> Any:
    return paddle.load(str(path))


def _size(tensor: Any) -> int:
    return int(tensor.size) * int(tensor.element_size())


def shards_leave() -> bool:
    """Whether `group_sharded_parallel`, the only call that offloads parameters and moments, takes this device."""
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    group_sharded_parallel(layer, optimizer, "p_g_os", offload=True)
    return True
