"""Devices, random streams, bytes saved by autograd, and bit-exact conversion of arrays (bfloat16 is `ml_dtypes`')."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.base import processor
from frameworks.base.recompute import OffloadedActivations, SavedActivations, TensorFiles

CPU = "cpu"
_BACKENDS = ("mtia", "hpu", "npu", "mps", "xpu", "cuda")
"""Types of accelerators that have had a module `torch.TYPE` in PyTorch or one of its extensions."""
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def to_tensor(array: Array, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A new tensor on `device`, rounded to `dtype` if one is given."""
    copy = np.array(array, order="C")
    if copy.dtype == BFLOAT16:
        tensor = torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(copy)
    return tensor.to(device=device, dtype=dtype or tensor.dtype)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, gathered if ranks hold shards of it; then every rank must call this."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def to_array(tensor: torch.Tensor) -> Array:
    """A copy of the tensor's values in its own format, gathered if ranks hold shards of it."""
    copy = whole(tensor.detach()).cpu().clone(memory_format=torch.contiguous_format)  # FSDP1 resizes what NumPy fixes
    if copy.dtype == torch.bfloat16:
        return copy.view(torch.int16).numpy().view(BFLOAT16)
    return copy.numpy()


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name without the framework's prefix."""
    return str(dtype).removeprefix("torch.")


class SavedBytes:
    """Counts each storage that autograd saves once, except the storages of `excluded` at that time.

    It keeps the storages alive while it counts, so that no other tensor gets the same address.
    """

    def __init__(self, excluded: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._excluded = excluded
        self._storages: dict[int, torch.UntypedStorage] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts saved tensors within the context."""
        with saved_tensors_hooks(self._pack, lambda saved: saved):
            yield

    def bytes(self) -> int:
        """Sum of the counted storages."""
        return sum(storage.nbytes() for storage in self._storages.values())

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in {other.untyped_storage().data_ptr() for other in self._excluded()}:
            self._storages[storage.data_ptr()] = storage
        return tensor


@contextmanager
def put_back(tensors: Sequence[torch.Tensor], counts: list[int]) -> Iterator[None]:
    """Restores previous values of tensors and counts."""
    values, former = [tensor.clone() for tensor in tensors], list(counts)
    yield
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
    counts[:] = former


def available() -> tuple[str, ...]:
    """The CPU and the types of the available accelerators; that of `torch.accelerator` is the last."""
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
    """Index of the accelerator in use; 0 where there can only be one, as with MPS."""
    current = getattr(module(device), "current_device", None)
    return 0 if current is None else int(current())


def model_name(device: str) -> str:
    """Model name of the processor or accelerator; the type if the accelerator's module has no name."""
    if device == CPU:
        return processor()
    describe = getattr(module(device), "get_device_name", None)
    return device if describe is None else str(describe())


def has_peak(device: str) -> bool:
    """Returns whether the device's allocator keeps a peak that can be reset."""
    return device != CPU and all(
        hasattr(module(device), name) for name in ("max_memory_allocated", "reset_peak_memory_stats")
    )


def random_apart(device: str) -> AbstractContextManager[None]:
    """A scope that restores the states of the generators of the CPU and the device at its end."""
    return torch.random.fork_rng([] if device == CPU else [index(device)], device_type=device)


class Stream:
    """The default generators' states of one run, installed only while the run draws.

    Attributes:
        states: generator state by device type, in PyTorch's format.
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
        """Replaces the states; PyTorch refuses invalid ones."""
        self.states = {name: state.clone() for name, state in states.items()}
        with self.open():
            pass

    def _keep(self) -> None:
        self.states = {CPU: torch.get_rng_state()}
        if self._index is not None:
            self.states[self._device] = module(self._device).get_rng_state(self._index)


def activations_of(offload: Offload | None) -> SavedActivations:
    """The activation offload of a run.

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
    """Returns whether `fully_shard`, the only API that offloads parameters, works without ranks."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # slow to import, rarely needed

    linear = torch.nn.Linear(2, 2, device=available()[-1])
    before = linear.weight.device
    fully_shard(linear, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return linear.weight.device != before
