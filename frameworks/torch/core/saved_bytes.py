"""Bytes that autograd holds between forward and backward, counted by saved-tensor hooks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.graph import saved_tensors_hooks


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
