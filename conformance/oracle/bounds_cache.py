"""Cache of exact runs and spreads derived from the reference, keyed by the hash of all inputs."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

folder = cache_folder
"""The folder in which derivations are stored."""


def origin_of(conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window]) -> str:
    """Return the SHA-256 of all inputs of an envelope: code, model, weights, recipe, conventions and data."""
    digest = hashlib.sha256()
    described = [repr(model.layers), repr(model.losses), repr(recipe), json.dumps(asdict(conventions))]
    digest.update("\n".join(described).encode())
    arrays = [*model.weights(recipe.seed).values()]
    for batch in (batch for window in windows for batch in window):
        arrays += [batch.inputs, *batch.targets.values(), *([] if batch.mask is None else [batch.mask])]
    for array in arrays:
        digest.update(str((array.dtype.str, array.shape)).encode() + array.tobytes())
    inputs = digest.hexdigest()
    origin = hashlib.sha256(f"{code_hash()}{inputs}".encode()).hexdigest()
    _last_inputs.clear()
    _last_inputs[origin[:32]] = _Inputs(inputs, conventions, model, recipe, tuple(windows))
    return origin


def load_arrays(path: Path, *names: str) -> dict[str, Array] | None:
    """Return the named arrays of a cache file, or of the spreads that come with the suite.

    The stored spreads are used if the file is missing or incomplete; an incomplete file is removed. None if neither has
    all of the arrays.
    """
    if path.is_file():
        try:
            with np.load(path) as saved:
                return {name: saved[name] for name in names}
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            path.unlink(missing_ok=True)
    return _load_stored(path, names)


def store(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays to a cache file atomically; an error, such as a full disk, leaves no file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays, **{CODE: np.array(code_hash()), INPUTS: np.array(_inputs_of(path).digest)})  # type: ignore[arg-type]
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class _Inputs:
    """The inputs of an origin, and their SHA-256."""

    digest: str
    conventions: Conventions
    model: Model
    recipe: Recipe
    windows: tuple[Window, ...]

    def exact(self, evaluation: bool) -> dict[str, Array]:
        """Return the arrays of the run without rounding; with `evaluation`, those of evaluation on the last window."""
        reference = ReferenceFramework("cpu", conventions=self.conventions, rounding=Exact())
        trainer = reference.trainer(self.model, self.recipe)
        if evaluation:
            *windows, (batch,) = self.windows
            return train_and_evaluate(trainer, windows, batch.inputs)
        exact = run(trainer, self.windows)
        return {"losses": exact.losses, "gradient": exact.gradient, "parameters": exact.parameters}


_last_inputs: dict[str, _Inputs] = {}
"""The inputs of the last computed origin, by the prefix of its cache files' names."""


def _inputs_of(path: Path) -> _Inputs:
    return _last_inputs[path.name.partition(".")[0]]


def _load_stored(path: Path, names: Sequence[str]) -> dict[str, Array] | None:
    """Return the stored spreads with the exact run, which is computed if asked for, and write both to a cache file."""
    inputs = _inputs_of(path)
    spreads = load_spreads().get(entry_name(inputs.digest, path))
    if spreads is None:
        return None
    arrays = dict(spreads)
    if not arrays.keys() >= set(names):
        arrays |= inputs.exact("predictions" in names)
    if not arrays.keys() >= set(names):
        return None
    store(path, arrays)
    return {name: arrays[name] for name in names}
