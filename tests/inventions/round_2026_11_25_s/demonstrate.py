"""Shows that every fault of the round changes what can be observed: `python -m` this module prints a line a fault."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from frameworks.reference import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_25_s import runs_1, runs_2

_FOLDER = "tests.inventions.round_2026_11_25_s"
MODULES = ("faults_s_1", "faults_s_2")
RUNS = runs_1.RUNS | runs_2.RUNS


def faults() -> list[type[ReferenceFramework]]:
    """The faults of this round, in their order."""
    names = [importlib.import_module(f"{_FOLDER}.{module}").__name__ for module in MODULES]
    return [made for made in FAULTS if made.__module__ in names]


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same, bit for bit."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        left, right = np.asarray(a), np.asarray(b)
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(a) and not isinstance(a, type) and type(a) is type(b):
        return all(same(getattr(a, part.name), getattr(b, part.name)) for part in dataclasses.fields(a))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b or (a != a and b != b))


def main() -> int:
    """Prints a line a fault; 1 if any shows no difference."""
    silent = 0
    for made in faults():
        run = RUNS[made.__name__]
        expected = run(ReferenceFramework())
        if not same(expected, run(ReferenceFramework())):
            differs, word = False, "two runs of the reference differ"
        else:
            differs = not same(expected, run(made()))
            word = "differs" if differs else "shows no difference"
        silent += not differs
        print(f"{made.__name__}: {word}")
    print(f"{len(faults())} faults, {silent} without a difference")
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())
