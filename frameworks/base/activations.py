"""Offload of what autograd saves, by hooks that pack and unpack it: to files, or wherever hooks put it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

Pack = Callable[[Any], Any]


class SavedActivations:
    """No offload."""

    def saving(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext()

    def taken(self) -> int:
        """Bytes offloaded since the last call; a tensor saved by two operations counts twice."""
        return 0


class OffloadedActivations(SavedActivations):
    """Saved-tensor hooks of a run, which count the bytes that leave.

    Args:
        hooks: the framework's context for a pair of hooks.
        pack, unpack: the hooks; a packed value that is the tensor itself, or has it as its second part, did not leave.
        size: the bytes of a tensor.
    """

    def __init__(
        self, hooks: Callable[[Pack, Pack], AbstractContextManager[Any]], pack: Pack, unpack: Pack, size: Pack
    ) -> None:
        self._hooks, self._pack, self._unpack, self._size = hooks, pack, unpack, size
        self._left = 0

    def saving(self) -> AbstractContextManager[Any]:
        return self._hooks(self._packed, self._unpack)

    def taken(self) -> int:
        left, self._left = self._left, 0
        return left

    def _packed(self, tensor: Any) -> Any:
        packed = self._pack(tensor)
        if not isinstance(packed, tuple) or packed[1] is not tensor:
            self._left += self._size(tensor)
        return packed


class TensorFiles:
    """One file for each tensor, in a folder that is deleted with this object.

    Args:
        folder: its parent; None for the temporary directory.
        save: writes a tensor to a path, with its strides, so that what is computed from it has the same bits.
        load: reads such a file.
        suffix: of the files' names.
    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(
        self, folder: str | None, save: Callable[[Any, Path], object], load: Callable[[Path], Any], suffix: str
    ) -> None:
        self._save, self._load, self._suffix = save, load, suffix
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = count()

    def pack(self, tensor: Any) -> TensorFile:
        file = TensorFile(self._folder / f"{next(self._numbers)}{self._suffix}")
        self._save(tensor, file.path)
        weakref.finalize(file, file.path.unlink, missing_ok=True)
        return file

    def unpack(self, file: TensorFile) -> Any:
        return self._load(file.path)


@dataclass(frozen=True, eq=False)
class TensorFile:
    """A file that is deleted with the graph."""

    path: Path
