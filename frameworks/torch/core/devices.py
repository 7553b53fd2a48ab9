"""Devices of PyTorch, random streams of runs on them, and activation offload to the CPU or to files."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from fixtures.recipe import Offload
from frameworks.base import processor
from frameworks.base.recompute import OffloadedActivations, SavedActivations, TensorFiles

CPU = "cpu"
_BACKENDS = ("mtia", "hpu", "npu", "mps", "xpu", "cuda")
"""Types of accelerators that have had a module `torch.TYPE` in PyTorch or one of its extensions."""


def available() -> tuple[str, ...]:
    """The CPU and the types of the accelerators that are available here, the one of `torch.accelerator` last."""
    preferred = _accelerator()
    others = (name for name in _BACKENDS if name not in preferred and _is_available(name))
    return (CPU, *others, *preferred)


def _accelerator() -> tuple[str, ...]:
    """The type that `torch.accelerator` names; versions before 2.6 have no such module."""
    if not hasattr(torch, "accelerator") or not torch.accelerator.is_available():
        return ()
    current = torch.accelerator.current_accelerator()
    return () if current is None else (current.type,)


def _is_available(name: str) -> bool:
    check = getattr(getattr(torch, name, None), "is_available", None)
    return check is not None and bool(check())


def module(device: str) -> Any:
    """PyTorch's module of an accelerator, such as `torch.cuda` or `torch.xpu`."""
    return torch.get_device_module(device)


def index(device: str) -> int:
    """Number of the accelerator in use; 0 where there is one alone, as with MPS."""
    current = getattr(module(device), "current_device", None)
    return 0 if current is None else int(current())


def model_name(device: str) -> str:
    """Model of the processor or accelerator; the type of an accelerator whose module does not say."""
    if device == CPU:
        return processor()
    describe = getattr(module(device), "get_device_name", None)
    return device if describe is None else str(describe())


def has_peak(device: str) -> bool:
    """Whether the device's allocator keeps a peak that can be reset."""
    return device != CPU and all(
        hasattr(module(device), name) for name in ("max_memory_allocated", "reset_peak_memory_stats")
    )


def random_apart(device: str) -> AbstractContextManager[None]:
    """A scope after which the generators of the CPU and the device have the states that they had before."""
    return torch.random.fork_rng([] if device == CPU else [index(device)], device_type=device)


class Stream:
    """The default generators' states of one run, installed only while the run draws.

    Attributes:
        states: generator state by device type, as PyTorch gives it.
    """

    def __init__(self, device: str, seed: int) -> None:
        self._device = device
        self._index = None if device == CPU else index(device)
        self.states: dict[str, torch.Tensor] = {}
        with random_apart(device):
            torch.manual_seed(seed)
            self._keep()

    @contextmanager
    def open(self, *, keep: bool = True) -> Iterator[None]:
        """Within the context, the default generators are this run's; with `keep` the stream advances."""
        with random_apart(self._device):
            torch.set_rng_state(self.states[CPU])
            if self._index is not None:
                module(self._device).set_rng_state(self.states[self._device], self._index)
            try:
                yield
            finally:
                if keep:
                    self._keep()

    def replace(self, states: Mapping[str, torch.Tensor]) -> None:
        """Sets other states; PyTorch refuses invalid ones."""
        self.states = {name: state.clone() for name, state in states.items()}
        with self.open():
            pass

    def _keep(self) -> None:
        self.states = {CPU: torch.get_rng_state()}
        if self._index is not None:
            self.states[self._device] = module(self._device).get_rng_state(self._index)


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
