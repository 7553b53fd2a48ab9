"""Shows for every fault of this set a plain run in which it differs from the reference."""

from __future__ import annotations

import importlib
import sys

import numpy as np

from frameworks.reference.framework import ReferenceFramework
from tests.inventions.round_2026_11_22_c.shows_c import SHOWN

MODULES = [importlib.import_module(f"tests.inventions.round_2026_11_22_c.faults_c_{i}") for i in (1, 2, 3, 4)]
for _part in (1, 2):
    importlib.import_module(f"tests.inventions.round_2026_11_22_c.shows_c_{_part}")


def outcome(function, framework):
    """What the function returns, as text that shows every bit, or the error that it ends with."""
    try:
        return plain(function(framework))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")


def plain(value):
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    return repr(value)


def main() -> int:
    faults = {n: c for m in MODULES for n, c in vars(m).items() if hasattr(c, "clause") and c.__module__ == m.__name__}
    bad = sorted(faults.keys() ^ SHOWN.keys())
    for name, cls in faults.items():
        if name in SHOWN:
            good, wrong = (outcome(SHOWN[name], f) for f in (ReferenceFramework("cpu"), cls("cpu")))
            expected = isinstance(good, str) and good.startswith("ValueError") and name == "HalvesAreAlike"
            sound = expected or not (isinstance(good, str) and "Error" in good)
            differs = good != wrong and sound
            raised = f" ({wrong})" if isinstance(wrong, str) and "Error" in wrong else ""
            print(f"{'differs' if differs else 'SAME   '}  {cls.kind:8}  {cls.clause:45}  {name}{raised}")
            if not sound:
                print("   ", good)
            bad += [] if differs else [name]
    kinds = [cls.kind for cls in faults.values()]
    counts = f"{kinds.count('real')} real, {kinds.count('invented')} invented"
    print(f"{len(faults)} faults: {counts}; without difference: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
