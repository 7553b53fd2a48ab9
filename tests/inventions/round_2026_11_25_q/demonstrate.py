"""Shows that every fault changes what can be observed: one small run each, by the reference and by the fault.

    python -m tests.inventions.round_2026_11_25_q.demonstrate

Prints a line a fault, and exits 1 if a fault shows no difference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from frameworks.reference import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_25_q.demonstrations_core import CORE
from tests.inventions.round_2026_11_25_q.demonstrations_rest import REST
from tests.inventions.round_2026_11_25_q.seen import Demonstration

DEMONSTRATIONS: Mapping[str, Demonstration] = {**CORE, **REST}


def _same(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tobytes() == b.tobytes() or bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def difference(expected: Mapping[str, Array], seen: Mapping[str, Array]) -> str | None:
    """The name of the first result that differs, None where all are the same."""
    for name in sorted(expected.keys() | seen.keys()):
        if name not in expected or name not in seen or not _same(np.asarray(expected[name]), np.asarray(seen[name])):
            return name
    return None


def main() -> int:
    """Runs every demonstration; 1 if a fault has none or shows no difference."""
    missed = 0
    for broken in FAULTS:
        demonstration = DEMONSTRATIONS[broken.__name__]
        found = difference(demonstration(ReferenceFramework()), demonstration(broken()))
        missed += found is None
        print(f"{broken.__name__}: {'NO DIFFERENCE' if found is None else f'differs in {found}'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
