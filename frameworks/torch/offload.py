"""What autograd saves, away from the device between forward and backward: `save_on_cpu`, or files."""

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

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


class Activations:
    """What autograd saves, kept where it is."""

    def saving(self) -> AbstractContextManager[Any]:
        """What a forward pass runs within."""
        return nullcontext()

    def taken(self) -> int:
        """Bytes that have left since the last call; a tensor that two operations save leaves twice."""
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
    """Where a run's saved tensors lie between forward and backward.

    Raises:
        OSError: the run's folder cannot be made.
    """
    return Activations() if offload is None else OffloadedActivations(offload)


class _Files:
    """A file a tensor, in a folder that goes with this object, as PyTorch's tutorial on the hooks writes them."""

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
    """A file that goes when the graph lets go of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, path.unlink, missing_ok=True)


def _load(file: _File) -> torch.Tensor:
    loaded: torch.Tensor = torch.load(file.path, weights_only=True)
    return loaded


def parameters_leave() -> bool:
    """Whether `fully_shard`, whose policy alone offloads parameters, moves them in one place."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # most of a second, which few runs need

    module = torch.nn.Linear(2, 2, device="cuda" if torch.cuda.is_available() else "cpu")
    before = module.weight.device
    fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return module.weight.device != before
