"""Spreads that come with the suite, so that a new checkout computes only exact runs, without ensembles.

    python -m tools spreads [--keep] FOLDER...

writes `spreads.json` from cache folders filled by runs of the suites with the default seed, each started with
CONFORMANCE_CACHE naming an empty folder. Entries derived by the same code stay, others are removed. With --keep, after
a change that moves no number, such as one of names, all entries stay if those that the folders derived again agree.

An entry is used only where code and inputs are those that it was derived from. The version of NumPy is not asked for:
another one turns last digits, which makes an ensemble another draw, and any draw is as good. With stored ones bounds
are the same wherever the suite runs.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from conformance.oracle.derivation_hash import code_hash
from fixtures.arrays import Array

FILE = Path(__file__).with_name("spreads.json")
SPREADS = frozenset(
    {"loss_spread", "gain_spread", "spread", "accuracies", "buffers.spread", "predictions.spread", "distances", "gains"}
)
"""Arrays of a cache file that come from an ensemble."""
SAMPLE = 20
"""Least number of entries that are derived again before all others are kept."""
DRAWS = 4.0
"""Spreads of two ensembles of eight members differ by less than this factor."""
CODE = "code"
"""Array of a cache file with the hash of the code that derived it."""


INPUTS = "inputs"
"""Array of a cache file with the hash of what it was derived from."""


def entry_name(inputs: str, path: Path) -> str:
    """The name of a cache file's entry: its inputs, and what the file is called after its origin."""
    return ".".join([inputs[:32], path.name.partition(".")[2]])


@cache
def load_spreads(file: Path = FILE) -> Mapping[str, Mapping[str, Array]]:
    """The entries of the present code, by name; none if the code has changed."""
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {CODE: ""}
    return _entries(content) if content[CODE] == code_hash() else {}


def _entries(content: Mapping[str, Any]) -> dict[str, dict[str, Array]]:
    entries = content["entries"].items()
    return {name: {key: _array(text) for key, text in arrays.items()} for name, arrays in entries}


def collect(folders: Sequence[Path], file: Path = FILE) -> int:
    """Rewrites the file; returns its number of entries.

    Raises:
        ValueError: a folder has no entry of the present code.
    """
    return _write({name: dict(arrays) for name, arrays in load_spreads(file).items()} | _collect_entries(folders), file)


def keep(folders: Sequence[Path], file: Path = FILE) -> int:
    """Makes the entries of former code those of the present one; returns their number.

    For changes that move no number, which this cannot prove: it looks at the entries that were derived again alone.
    Another processor turns last digits, which makes some ensembles other draws.

    Raises:
        ValueError: fewer than `SAMPLE` of them were derived again, fewer than half of these are equal, or one is beyond
            what two draws differ by.
    """
    entries, again = _entries(json.loads(file.read_text("utf-8"))), _collect_entries(folders)
    sample = sorted(entries.keys() & again.keys())
    if len(sample) < SAMPLE:
        raise ValueError(f"got {len(sample)} entries that were derived again, want {SAMPLE}: name folders of more runs")
    other = [name for name in sample if not _agree(entries[name], again[name], factor=1.0)]
    apart = [name for name in other if not _agree(entries[name], again[name], factor=DRAWS)]
    if apart or 2 * len(other) > len(sample):
        raise ValueError(
            f"{len(other)} of {len(sample)} entries differ, such as {(apart + other)[0]}: collect all again"
        )
    return _write(entries | again, file)


def _agree(left: Mapping[str, Array], right: Mapping[str, Array], factor: float) -> bool:
    """Whether two entries have the same arrays, up to a factor in each number."""
    if left.keys() != right.keys() or any(left[name].shape != right[name].shape for name in left):
        return False
    pairs = [(left[name], right[name]) for name in left]
    return all(np.all((a <= factor * b) & (b <= factor * a) | np.isnan(a) & np.isnan(b) | (a == b)) for a, b in pairs)


def _collect_entries(folders: Sequence[Path]) -> dict[str, dict[str, Array]]:
    entries: dict[str, dict[str, Array]] = {}
    for folder in folders:
        fresh = dict(filter(None, map(_entry, sorted(folder.glob("*.npz")))))
        if not fresh:
            raise ValueError(
                f"{folder}: no spreads of the present code; run the suites with CONFORMANCE_CACHE={folder}"
            )
        entries |= fresh
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


def _entry(path: Path) -> tuple[str, dict[str, Array]] | None:
    """Name and ensemble arrays of a cache file; None if it has none, other code derived them or it cannot be read."""
    try:
        with np.load(path) as file:
            if INPUTS not in file or file[CODE].item() != code_hash():
                return None
            arrays = {name: file[name] for name in file.files if name in SPREADS}
            return (entry_name(file[INPUTS].item(), path), arrays) if arrays else None
    except (OSError, ValueError, EOFError, BadZipFile):
        return None


def _text(array: Array) -> str:
    """Numbers in their shortest exact form, in one line; a single number begins with "="."""
    text = " ".join(repr(value) for value in np.asarray(array, np.float64).ravel().tolist())
    return text if array.shape else f"={text}"


def _array(text: str) -> Array:
    if text.startswith("="):
        return np.array(float(text[1:]))
    return np.array([float(word) for word in text.split()], np.float64)


def main(arguments: Sequence[str]) -> int:
    """Collects the named folders; returns the exit status."""
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
