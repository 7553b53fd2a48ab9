"""Cache of what is derived from the reference, by the hash of everything that it derives from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.cache_folder import cache_folder
from frameworks.contract import Conventions


def origin_of(conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window]) -> str:
    """SHA-256 of everything that an envelope derives from: code, model, weights, recipe, conventions and data."""
    digest = hashlib.sha256(_code())
    described = [repr(model.layers), repr(model.losses), repr(recipe), json.dumps(asdict(conventions))]
    digest.update("\n".join(described).encode())
    arrays = [*model.weights(recipe.seed).values()]
    for batch in (batch for window in windows for batch in window):
        arrays += [batch.inputs, *batch.targets.values(), *([] if batch.mask is None else [batch.mask])]
    for array in arrays:
        digest.update(str((array.dtype.str, array.shape)).encode() + array.tobytes())
    return digest.hexdigest()


@cache
def _code() -> bytes:
    root = Path(__file__).parents[2]
    files = [
        *(Path(__file__).with_name(name) for name in ("bounds_cache.py", "errormodel.py")),
        *sorted((root / "frameworks" / "reference").glob("*.py")),
        *sorted((root / "fixtures").glob("*.py")),
    ]
    return b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)


def folder() -> Path:
    """Where derivations are stored."""
    return cache_folder()


def loaded(path: Path, *names: str) -> dict[str, Array] | None:
    """Arrays of a cache file; None, and the file removed, if it is not whole."""
    if not path.is_file():
        return None
    try:
        with np.load(path) as saved:
            return {name: saved[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        path.unlink(missing_ok=True)
        return None


def store(path: Path, arrays: dict[str, Array]) -> None:
    """Writes arrays to a cache file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)
