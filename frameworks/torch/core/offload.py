"""Activation offload: autograd's saved tensors on the CPU (`save_on_cpu`) or in files."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from fixtures.recipe import Offload
from frameworks.base.activations import OffloadedActivations, SavedActivations, TensorFiles
from frameworks.torch.core.devices import available


def activations_of(offload: Offload | None) -> SavedActivations:
    """The offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    if offload is None:
        return SavedActivations()
    size = attrgetter("nbytes")
    if offload.to == "disk":
        files = TensorFiles(offload.folder, _save, _load, ".pt")
        return OffloadedActivations(saved_tensors_hooks, files.pack, files.unpack, size)
    hooks: Any = save_on_cpu()
    return OffloadedActivations(saved_tensors_hooks, hooks.pack_hook, hooks.unpack_hook, size)


def _save(tensor: torch.Tensor, path: Path) -> None:
    torch.save(tensor.detach(), path)


def _load(path: Path) -> torch.Tensor:
    return torch.load(path, weights_only=True)


def parameters_leave() -> bool:
    """Whether `fully_shard`, the only API that offloads parameters, works without ranks."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # most of a second, which few runs need

    module = torch.nn.Linear(2, 2, device=available()[-1])
    before = module.weight.device
    fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return module.weight.device != before
