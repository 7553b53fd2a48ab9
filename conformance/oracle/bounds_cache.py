"""Exact runs and spreads derived from the reference: their cache, and those that come with the suite.

    python -m tools spreads [--keep] FOLDER...

This command writes `spreads.json` from cache folders. Runs of the suites with the default seed fill the folders; each
run starts with CONFORMANCE_CACHE set to an empty folder. Entries of the present code stay, others are removed. --keep
is for changes that move no number, such as a new name: all entries stay if those that were derived again agree.

An entry is used only with the code and the inputs that it was derived from. The version of NumPy does not count:
another version changes last digits, so an ensemble becomes another draw, and any draw is as good. Stored spreads make
the bounds the same wherever the suite runs.

The cache is keyed by the hash of all inputs, and by that of the source modules that a derivation uses.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from conformance.oracle.derivation_hash import code_hash
from conformance.oracle.runs import run, train_and_evaluate
from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.cache_folder import cache_folder
from frameworks.contract import Conventions
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact

FILE = Path(__file__).with_name("spreads.json")
SPREADS = frozenset(
    {"loss_spread", "gain_spread", "spread", "accuracies", "buffers.spread", "predictions.spread", "distances", "gains"}
)
"""Arrays of a cache file that come from an ensemble."""
SAMPLE = 20
"""Smallest number of entries that must be derived again before `keep` keeps all others."""
DRAWS = 4.0
"""Factor by which the spreads of two ensembles of eight members differ at most."""
CODE = "code"
"""Array of a cache file with the hash of the code that derived it."""
INPUTS = "inputs"
"""Array of a cache file with the hash of the inputs that it was derived from."""


def entry_name(inputs: str, path: Path) -> str:
    """Return the name of a cache file's entry: the hash of its inputs, and the file's suffixes."""
    return ".".join([inputs[:32], path.name.partition(".")[2]])


@cache
def load_spreads(file: Path = FILE) -> Mapping[str, Mapping[str, Array]]:
    """Return the entries by name; none if the code has changed since they were derived."""
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {CODE: ""}
    return _entries(content) if content[CODE] == code_hash() else {}


def _entries(content: Mapping[str, Any]) -> dict[str, dict[str, Array]]:
    entries = content["entries"].items()
    return {name: {key: _array(text) for key, text in arrays.items()} for name, arrays in entries}


def collect(folders: Sequence[Path], file: Path = FILE) -> int:
    """Add the entries of cache folders to the file and return its number of entries.

    Raises:
        ValueError: a folder has no entry of the present code.
    """
    return _write({name: dict(arrays) for name, arrays in load_spreads(file).items()} | _collect_entries(folders), file)


def keep(folders: Sequence[Path], file: Path = FILE) -> int:
    """Mark all entries as derived by the present code and return their number.

    This is for changes of the code that move no number. It compares only the entries that were derived again. Another
    processor changes last digits, which makes some ensembles other draws.

    Raises:
        ValueError: fewer than `SAMPLE` entries were derived again, fewer than half of these are equal, or one differs
            by more than the factor `DRAWS`.
    """
    entries, derived = _entries(json.loads(file.read_text("utf-8"))), _collect_entries(folders)
    sample = sorted(entries.keys() & derived.keys())
    if len(sample) < SAMPLE:
        raise ValueError(f"got {len(sample)} entries that were derived again, want {SAMPLE}: name folders of more runs")
    unequal = [name for name in sample if not _agree(entries[name], derived[name], factor=1.0)]
    far = [name for name in unequal if not _agree(entries[name], derived[name], factor=DRAWS)]
    if far or 2 * len(unequal) > len(sample):
        raise ValueError(
            f"{len(unequal)} of {len(sample)} entries differ, such as {(far + unequal)[0]}: collect all again"
        )
    return _write(entries | derived, file)


def _agree(one: Mapping[str, Array], other: Mapping[str, Array], factor: float) -> bool:
    """Return whether two entries have the same arrays, up to a factor in each number."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return False
    pairs = [(one[name], other[name]) for name in one]
    return all(np.all((a <= factor * b) & (b <= factor * a) | np.isnan(a) & np.isnan(b) | (a == b)) for a, b in pairs)


def _collect_entries(folders: Sequence[Path]) -> dict[str, dict[str, Array]]:
    entries: dict[str, dict[str, Array]] = {}
    for folder in folders:
        found = [entry for entry in map(_load_entry, sorted(folder.glob("*.npz"))) if entry is not None]
        if not found:
            raise ValueError(
                f"{folder}: no spreads of the present code; run the suites with CONFORMANCE_CACHE={folder}"
            )
        entries |= dict(found)
    return entries


def _write(entries: Mapping[str, Mapping[str, Array]], file: Path) -> int:
    lines = [
        f"{json.dumps(name)}: {json.dumps({key: _text(array) for key, array in sorted(entries[name].items())})}"
        for name in sorted(entries)
    ]
    head = f'{{"{CODE}": "{code_hash()}", "entries": {{'
    file.write_text("\n".join([head, ",\n".join(lines), "}}\n"]), "utf-8")
    load_spreads.cache_clear()
    return len(entries)


def _load_entry(path: Path) -> tuple[str, dict[str, Array]] | None:
    """Return name and ensemble arrays of a cache file; None without any, of other code, or if it cannot be read."""
    try:
        with np.load(path) as file:
            if INPUTS not in file or file[CODE].item() != code_hash():
                return None
            arrays = {name: file[name] for name in file.files if name in SPREADS}
            return (entry_name(file[INPUTS].item(), path), arrays) if arrays else None
    except (OSError, ValueError, EOFError, BadZipFile):
        return None


def _text(array: Array) -> str:
    """Return numbers in their shortest exact form, in one line; a scalar begins with "="."""
    text = " ".join(repr(value) for value in np.asarray(array, np.float64).ravel().tolist())
    return text if array.shape else f"={text}"


def _array(text: str) -> Array:
    if text.startswith("="):
        return np.array(float(text[1:]))
    return np.array([float(word) for word in text.split()], np.float64)


def main(arguments: Sequence[str]) -> int:
    """Collect the entries of the named folders and return the exit status."""
    folders = [Path(argument) for argument in arguments if argument != "--keep"]
    if not folders:
        print(
            "name one or more cache folders (CONFORMANCE_CACHE) of runs that started with an empty one", file=sys.stderr
        )
        return 2
    try:
        count = (keep if "--keep" in arguments else collect)(folders)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{FILE}: {count} entries, {FILE.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


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
