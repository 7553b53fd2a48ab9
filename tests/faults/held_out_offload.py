"""Held-out faults of offload: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

import hashlib
import io
import shutil
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.reference.decisions import Arrays
from frameworks.reference.eight_bit_state import EightBitMoments
from frameworks.reference.offload import ArrayStore, DiskStore
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@primitive
def _through(x: Array, change: Callable[[Array], Array]) -> Array:
    del change
    return x


defvjp(_through, lambda _ans, _x, change: lambda gradient: change(gradient), None)


def changed(x: Tensor, change: Callable[[Array], Array]) -> Tensor:
    """The same tensor, whose gradient `change` turns into another one."""
    return Tensor(_through(x.value, change), x.format, x.owned)


class _SharedFolder(DiskStore):
    """A store whose folder has the same name for every run."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / "swap"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@fault("https://github.com/huggingface/transformers/pull/31800", component="offload", clauses=("offload.same-bits",))
class RunsShareTheirSwapFiles(ReferenceTrainer):
    """Runs that offload to disk below one named folder at the same time share their files: each reads what any of them
    wrote last, and the files go with the first of the runs that goes."""

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to == "disk" and offload.folder is not None:
            return _SharedFolder(offload.folder)
        return super().make_store(offload)


_BLOCK, _DIGEST = 2**16, 32


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(len(content).to_bytes(8, "big") + content[:_BLOCK]).digest()


class _ChecksTheFirstBlock(DiskStore):
    """A store that looks at the length of a file and at its first block."""

    def put(self, key: str, array: Array) -> None:
        order = np.argsort([-abs(stride) for stride in array.strides], kind="stable").astype(int)
        buffer = io.BytesIO(bytes([array.ndim, *order]))
        buffer.seek(0, io.SEEK_END)
        np.save(buffer, array.transpose(order).copy(order="C"))
        content, partial = buffer.getvalue(), self.path(key).with_suffix(".partial")
        partial.write_bytes(_checksum(content) + content)
        partial.replace(self.path(key))

    def get(self, key: str) -> Array:
        content = self.path(key).read_bytes()
        if _checksum(content[_DIGEST:]) != content[:_DIGEST]:
            raise ValueError(f"{self.path(key)} is not what was offloaded: its checksum differs")
        axes = content[_DIGEST]
        order = np.frombuffer(content, np.uint8, axes, _DIGEST + 1)
        values = np.load(io.BytesIO(content[_DIGEST + 1 + axes :]), allow_pickle=False)
        return np.transpose(values, np.argsort(order))


@fault("", component="offload", clauses=("offload.disk-fault",))
class ChecksumOfTheFirstBlock(ReferenceTrainer):
    """The checksum of an offloaded file covers its length and its first 65,536 bytes, so that a change further on is
    not noticed."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _ChecksTheFirstBlock(offload.folder) if offload.to == "disk" else super().make_store(offload)


_LEADING = 4096


class _Sparing(DiskStore):
    """Files that are not written again where the leading values are what they were."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self.leading: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def put(self, key: str, array: Array) -> None:
        known = array.shape, array.reshape(-1)[:_LEADING].tobytes()
        if array.size > _LEADING and self.leading.get(key) == known:
            return
        super().put(key, array)
        self.leading[key] = known

    def drop(self, key: str) -> None:
        self.leading.pop(key, None)
        super().drop(key)


@fault("", component="offload", clauses=("offload.trains",))
class UnchangedByTheirBeginning(ReferenceTrainer):
    """An array of more than 4,096 values that is offloaded to disk is not written again while its first 4,096 values
    stay as they are, so that a change further on is lost.
    """

    def make_store(self, offload: Offload) -> ArrayStore:
        return _Sparing(offload.folder) if offload.to == "disk" else super().make_store(offload)


class _OneFolder(DiskStore):
    """A store whose files lie in a folder that all live stores below the same folder have together."""

    live: ClassVar[Counter[Path]] = Counter()

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / "offloaded"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.live[self.folder] += 1
        self._ending = weakref.finalize(self, self._gone, self.folder)

    @classmethod
    def _gone(cls, folder: Path) -> None:
        cls.live[folder] -= 1
        if not cls.live[folder]:
            shutil.rmtree(folder, ignore_errors=True)


@fault("", component="offload", clauses=("offload.same-bits",))
class RunsShareTheOffloadFolder(ReferenceTrainer):
    """Runs that offload to files below the same named folder at the same time use the same files, so that a run reads
    what another one wrote last; the files go with the last of these runs."""

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to == "host" or offload.folder is None:
            return super().make_store(offload)
        return _OneFolder(offload.folder)


_HEAD = 512
"""Entries by which an array on disk is taken for unchanged."""


class _HeadStore(DiskStore):
    """Files that are written where the first entries of their arrays have changed."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self._heads: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def put(self, key: str, array: Array) -> None:
        head = array.shape, array.reshape(-1)[:_HEAD].tobytes()
        if self._heads.get(key) == head and self.path(key).exists():
            return
        super().put(key, array)
        self._heads[key] = head

    def drop(self, key: str) -> None:
        self._heads.pop(key, None)
        super().drop(key)


@fault("", component="offload", clauses=("offload.same-bits",))
class DiskTakesLargeArraysForUnchanged(ReferenceTrainer):
    """Parameters and moments on disk are written anew only where one of their first 512 entries has changed, so that
    an update of later rows alone, as of a large embedding, is lost."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _HeadStore(offload.folder) if offload.to == "disk" else super().make_store(offload)


@fault("", component="offload", clauses=("offload.acts",))
class LoadedMomentsStayOnTheDevice(ReferenceTrainer):
    """A load puts the optimizer's moments on the device and does not offload them again.

    A resumed run holds on its device what it was asked to keep away.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {s: m if isinstance(m, EightBitMoments) else dict(m) for s, m in self.slots.items()}


class _Float32Files(DiskStore):
    def put(self, key: str, array: Array) -> None:
        narrow = array.dtype == np.float64 and not key.startswith("activation/")
        with np.errstate(over="ignore", under="ignore"):
            super().put(key, array.astype(np.float32).astype(np.float64) if narrow else array)


@fault("", component="offload", clauses=("offload.same-bits",))
class FilesHoldFloat32(ReferenceTrainer):
    """Parameters and moments that are offloaded to disk are written in float32, those of float64 heads too."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _Float32Files(offload.folder) if offload.to == "disk" else super().make_store(offload)
