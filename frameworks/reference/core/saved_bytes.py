"""Bytes that a forward pass keeps for backward."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.core.tape import Tensor


class SavedForBackward:
    """Counts the bytes that a forward pass saves for backward; an array that two operations save counts once."""

    def __init__(self) -> None:
        self._saved: dict[tuple[int, str], tuple[Array, Tensor]] = {}
        self._extra = 0

    def keep(self, *tensors: Tensor) -> None:
        """Counts these tensors as saved; parameters, inputs and their casts are not counted."""
        for t in tensors:
            if t.owned:
                values = _find_base(t.plain())
                self._saved[id(values), t.format] = values, t

    def keep_bytes(self, count: int) -> None:
        """Counts bytes of saved masks, indices or statistics, which are not tensors."""
        self._extra += count

    @property
    def bytes(self) -> int:
        """Total number of saved bytes."""
        return self._extra + sum(t.bytes for _, t in self._saved.values())


def _find_base(array: Array) -> Array:
    """The array that owns the memory of this view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
