"""Cache of exact runs and spreads derived from the reference, keyed by the hash of all inputs."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from conformance.oracle.derivation_hash import code_hash
from conformance.oracle.runs import run, train_and_evaluate
from conformance.oracle.stored_spreads import CODE, INPUTS, entry_name, load_spreads
from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.cache_folder import cache_folder
from frameworks.contract import Conventions
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact

_APART = frozenset({"adapter_format", "adapter_bias", "adapter_save", "pipeline_scaling"})
"""Conventions on which no bound depends."""


@dataclass(frozen=True, eq=False)
class Origin:
    """The inputs of a derivation; with the code, they name its cache files."""

    conventions: Conventions
    model: Model
    recipe: Recipe
    windows: tuple[Window, ...]

    @cached_property
    def inputs(self) -> str:
        """The SHA-256 of model, weights, recipe, conventions and data."""
        digest = hashlib.sha256()
        model, recipe = self.model, self.recipe
        conventions = {name: value for name, value in asdict(self.conventions).items() if name not in _APART}
        described = [repr(model.layers), repr(model.losses), repr(recipe), json.dumps(conventions)]
        digest.update("\n".join(described).encode())
        arrays = [*model.weights(recipe.seed).values()]
        for batch in (batch for window in self.windows for batch in window):
            arrays += [batch.inputs, *batch.targets.values(), *([] if batch.mask is None else [batch.mask])]
        for array in arrays:
            digest.update(str((array.dtype.str, array.shape)).encode() + array.tobytes())
        return digest.hexdigest()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the code and the inputs."""
        return hashlib.sha256(f"{code_hash()}{self.inputs}".encode()).hexdigest()

    def path(self, kind: str) -> Path:
        """Return the cache file of a kind of derivation, such as "quality"; "" is an envelope."""
        return cache_folder() / ".".join(part for part in (self.digest[:32], kind, "npz") if part)

    def derive_exact(self, evaluation: bool) -> dict[str, Array]:
        """Return the arrays of the run without rounding; with `evaluation`, those of evaluation on the last window."""
        reference = ReferenceFramework("cpu", conventions=self.conventions, rounding=Exact())
        trainer = reference.trainer(self.model, self.recipe)
        if evaluation:
            *windows, (batch,) = self.windows
            return train_and_evaluate(trainer, windows, batch.inputs)
        exact = run(trainer, self.windows)
        return {"losses": exact.losses, "gradient": exact.gradient, "parameters": exact.parameters}


def load_arrays(origin: Origin, kind: str, names: Sequence[str]) -> dict[str, Array] | None:
    """Return the named arrays of the cache file of a kind of derivation, or of the spreads that come with the suite.

    The stored spreads are used if the file is missing or incomplete; an incomplete file is removed. None if neither has
    all of the arrays.
    """
    path = origin.path(kind)
    if path.is_file():
        try:
            with np.load(path) as saved:
                return {name: saved[name] for name in names}
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            path.unlink(missing_ok=True)
    return _load_stored(origin, kind, names)


def store(origin: Origin, kind: str, arrays: dict[str, Array]) -> None:
    """Write arrays to their cache file atomically; an error, such as a full disk, leaves no file behind."""
    path = origin.path(kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays, **{CODE: np.array(code_hash()), INPUTS: np.array(origin.inputs)})  # type: ignore[arg-type]
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _load_stored(origin: Origin, kind: str, names: Sequence[str]) -> dict[str, Array] | None:
    """Return the stored spreads with the exact run, which is computed if asked for, and write both to a cache file."""
    spreads = load_spreads().get(entry_name(origin.inputs, origin.path(kind)))
    if spreads is None:
        return None
    arrays = dict(spreads)
    if not arrays.keys() >= set(names):
        arrays |= origin.derive_exact("predictions" in names)
    if not arrays.keys() >= set(names):
        return None
    store(origin, kind, arrays)
    return {name: arrays[name] for name in names}
