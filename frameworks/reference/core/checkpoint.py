"""Writes and reads a checkpoint: one file of named arrays.

The file has the SHA-256 of the rest of the file, the SHA-256 of the run's identity, and an .npz of the arrays.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fixtures.arrays import Array

FILE = "reference.run"
_DIGEST = 64  # hexadecimal digits of a SHA-256


def write(folder: Path, arrays: Mapping[str, Array], identity: str, *, compressed: bool = False) -> None:
    """Writes the run's arrays to a file in `folder`, atomically."""
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    content = hashlib.sha256(identity.encode()).hexdigest().encode() + buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{FILE}.{os.getpid()}.partial"
    with partial.open("wb") as file:
        file.write(hashlib.sha256(content).hexdigest().encode() + content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / FILE)


def read(folder: Path, identity: str, like: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays that `write` wrote for a run of the same identity.

    Raises:
        ValueError: the file is missing, cut short, changed, or another run's.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    digest, content = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError(f"{path}: not a whole checkpoint of the reference: its checksum differs")
    if content[:_DIGEST] != hashlib.sha256(identity.encode()).hexdigest().encode():
        raise ValueError(f"{path}: the checkpoint of another model or recipe")
    try:
        with np.load(io.BytesIO(content[_DIGEST:]), allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: cannot be decoded: {error}") from error
    missing = [name for name in like if name not in arrays and not name.startswith(("window/", "seen/"))]
    if missing:
        raise ValueError(f"{path}: holds no {missing[0]}")
    return arrays
