"""Bytes that a forward pass keeps for backward."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.core.tape import Tensor


class SavedForBackward:
    """Bytes that the operations of a forward pass keep for backward; values that two of them keep count once."""

    def __init__(self) -> None:
        self._saved: dict[tuple[int, str], tuple[Array, Tensor]] = {}
        self._extra = 0

    def keep(self, *tensors: Tensor) -> None:
        """Keeps tensors; parameters, inputs and their casts do not count."""
        for t in tensors:
            if t.owned:
                values = _find_base(t.plain())
                self._saved[id(values), t.format] = values, t

    def keep_bytes(self, count: int) -> None:
        """Keeps something that is no tensor: a mask, indices, statistics."""
        self._extra += count

    @property
    def bytes(self) -> int:
        """The total."""
        return self._extra + sum(t.bytes for _, t in self._saved.values())


def _find_base(array: Array) -> Array:
    """The array whose memory this one shows in another shape."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
