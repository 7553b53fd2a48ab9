"""Activation offload: autograd's saved tensors on the CPU (`save_on_cpu`) or in files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from fixtures.recipe import Offload
from frameworks.torch.devices import available

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


class Activations:
    """No offload."""

    def saving(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext()

    def taken(self) -> int:
        """Bytes offloaded since the last call; a tensor saved by two operations counts twice."""
        return 0


class OffloadedActivations(Activations):
    """Saved-tensor hooks of a run, which count the bytes that leave.

    Raises:
        OSError: the run's folder cannot be made.
    """

    def __init__(self, offload: Offload) -> None:
        self._left = 0
        self._pack: Pack
        self._unpack: Unpack
        if offload.to == "disk":
            self._pack, self._unpack = _Files(offload.folder).pack, _load
        else:
            hooks: Any = save_on_cpu()
            self._pack, self._unpack = hooks.pack_hook, hooks.unpack_hook

    def saving(self) -> AbstractContextManager[Any]:
        return saved_tensors_hooks(self._packed, self._unpack)

    def taken(self) -> int:
        left, self._left = self._left, 0
        return left

    def _packed(self, tensor: torch.Tensor) -> Any:
        packed = self._pack(tensor)
        if not isinstance(packed, tuple) or packed[1] is not tensor:
            self._left += tensor.nbytes
        return packed


def activations_of(offload: Offload | None) -> Activations:
    """The offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    return Activations() if offload is None else OffloadedActivations(offload)


class _Files:
    """One file for each tensor, in a folder that is deleted with this object, as in PyTorch's tutorial on hooks."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = count()

    def pack(self, tensor: torch.Tensor) -> _File:
        """Writes the tensor with its strides, so that what is computed from it has the same bits."""
        file = _File(self._folder / f"{next(self._numbers)}.pt")
        torch.save(tensor.detach(), file.path)
        return file


class _File:
    """A file that is deleted with the graph."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, path.unlink, missing_ok=True)


def _load(file: _File) -> torch.Tensor:
    loaded: torch.Tensor = torch.load(file.path, weights_only=True)
    return loaded


def parameters_leave() -> bool:
    """Whether `fully_shard`, the only API that offloads parameters, works without ranks."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # most of a second, which few runs need

    module = torch.nn.Linear(2, 2, device=available()[-1])
    before = module.weight.device
    fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return module.weight.device != before
