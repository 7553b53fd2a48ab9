"""Conversion between NumPy arrays and tensors, bit for bit (bfloat16 is `ml_dtypes`'), and bytes saved by autograd."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from fixtures.arrays import Array

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def to_tensor(array: Array, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of its own on `device`, rounded to `dtype` if one is given."""
    own = np.array(array, order="C")
    if own.dtype == BFLOAT16:
        tensor = torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(own)
    return tensor.to(device=device, dtype=dtype or tensor.dtype)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; if ranks hold shards, the gathered one, for which every rank must call this."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def to_array(tensor: torch.Tensor) -> Array:
    """A copy of the tensor's values in its own format, gathered where ranks have shards of it."""
    copy = whole(tensor.detach()).cpu().clone(memory_format=torch.contiguous_format)  # FSDP1 resizes what NumPy fixes
    if copy.dtype == torch.bfloat16:
        return copy.view(torch.int16).numpy().view(BFLOAT16)
    return copy.numpy()


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name without the framework's prefix."""
    return str(dtype).removeprefix("torch.")


class SavedBytes:
    """Counts every storage that autograd saves once, leaving out the storages of `excluded` at that time.

    The storages are kept alive while they are counted, so that no address comes back for another tensor.
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
