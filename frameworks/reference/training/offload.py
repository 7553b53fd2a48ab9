"""Offload: stores of a run's arrays in host memory or files, for the time in which the arrays are not used."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from autograd.core import VJPNode, primitive_vjps

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.reference.core.tape import fill, flatten

_DIGEST = 32  # bytes of a SHA-256


class ArrayStore(Protocol):
    """A store of arrays by key."""

    def put(self, key: str, array: Array) -> None:
        """Stores a copy of the array under the key."""

    def get(self, key: str) -> Array:
        """A copy of the stored array, with the same memory order."""

    def drop(self, key: str) -> None:
        """Removes the key, if it exists."""


class HostStore:
    """Copies in memory."""

    def __init__(self) -> None:
        self.copies: dict[str, Array] = {}

    def put(self, key: str, array: Array) -> None:
        self.copies[key] = array.copy(order="K")

    def get(self, key: str) -> Array:
        return self.copies[key].copy(order="K")

    def drop(self, key: str) -> None:
        self.copies.pop(key, None)


class DiskStore:
    """One file for each array, with the SHA-256 of its content, in a folder that is deleted with this object.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.folder / f"{key.replace('/', '-')}.npy"

    def put(self, key: str, array: Array) -> None:
        """Writes the file atomically.

        Raises:
            OSError: the file cannot be written; the message names it, and its former content is unchanged.
        """
        order = np.argsort([-abs(stride) for stride in array.strides], kind="stable").astype(int)
        buffer = io.BytesIO(bytes([array.ndim, *order]))
        buffer.seek(0, io.SEEK_END)
        np.save(buffer, array.transpose(order).copy(order="C"))
        content, partial = buffer.getvalue(), self.path(key).with_suffix(".partial")
        partial.write_bytes(hashlib.sha256(content).digest() + content)
        partial.replace(self.path(key))

    def get(self, key: str) -> Array:
        """Reads the file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the content differs from what was written.
        """
        content = self.path(key).read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            raise ValueError(f"{self.path(key)} is not what was offloaded: its checksum differs")
        axes = content[_DIGEST]
        order = np.frombuffer(content, np.uint8, axes, _DIGEST + 1)
        values = np.load(io.BytesIO(content[_DIGEST + 1 + axes :]), allow_pickle=False)
        return np.transpose(values, np.argsort(order))

    def drop(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)


def store_of(offload: Offload) -> ArrayStore:
    """The store for an offload."""
    return HostStore() if offload.to == "host" else DiskStore(offload.folder)


class StoredArrays(MutableMapping[str, Array]):
    """A mapping of named arrays that are in a store; each access reads a copy from the store."""

    def __init__(self, store: ArrayStore, group: str, arrays: Mapping[str, Array]) -> None:
        self._store, self._group = store, group
        self._names: dict[str, None] = {}
        self.update(arrays)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._store.get(f"{self._group}/{name}")

    def __setitem__(self, name: str, array: Array) -> None:
        self._store.put(f"{self._group}/{name}", array)
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._store.drop(f"{self._group}/{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Activations:
    """Saved activations, in a store between forward and backward."""

    def __init__(self, store: ArrayStore) -> None:
        self.store = store
        self._offloaded = 0
        self._numbers = count()

    def node_type(self) -> type[VJPNode]:
        """A node type of the tape whose nodes keep keys of the store in place of arrays."""
        activations = weakref.proxy(self)  # classes outlive what they were made for

        class Parked(VJPNode):
            def __init__(self, value: Any, fun: Any, args: Any, kwargs: Any, argnums: Any, parents: Any) -> None:
                self.parents = parents
                parked = _Parked(activations, (value, tuple(args), kwargs))
                make = primitive_vjps[fun]
                self.vjp = lambda gradient: make(argnums, *parked.fetch())(gradient)

        return Parked

    def put(self, array: Array) -> str:
        """Puts one array into the store; returns its key."""
        key = f"activation/{next(self._numbers)}"
        self.store.put(key, array)
        self._offloaded += array.nbytes
        return key

    def take_bytes(self) -> int:
        """Bytes offloaded since the last call, counted as float64 carriers."""
        offloaded, self._offloaded = self._offloaded, 0
        return offloaded


class _Parked:
    """Nested values whose floating arrays are in a store; they are dropped when this object is deleted."""

    def __init__(self, activations: Activations, nest: Any) -> None:
        self._store = activations.store
        self._keys: list[str] = []
        weakref.finalize(self, _drop, self._store, self._keys)
        leaves: list[Any] = []
        self._nest = flatten(nest, leaves)
        for leaf in leaves:
            self._keys.append(activations.put(leaf))

    def fetch(self) -> Any:
        """The nested values, with their arrays read from the store."""
        return fill(self._nest, [self._store.get(key) for key in self._keys])


def _drop(store: ArrayStore, keys: list[str]) -> None:
    for key in keys:
        store.drop(key)
