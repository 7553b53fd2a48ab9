"""Shows that each fault of the round changes what a program sees through the contract.

    python -m tests.inventions.round_2026_11_25_r.demonstrate

prints a line for each fault and exits with 1 if one of them shows no difference.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from frameworks.reference import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_25_r import faults_r_1, faults_r_2
from tests.inventions.round_2026_11_25_r.programs import PROGRAMS, Seen

MODULES = (faults_r_1.__name__, faults_r_2.__name__)


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same: format, shape and every bit that counts, NaN for NaN."""
    one, other = np.asarray(a), np.asarray(b)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind in "OUSb":
        return bool(np.all(one == other))
    return bool(np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True))


def differing(expected: Seen, found: Seen) -> list[str]:
    """The names of what differs, or is there on one side alone."""
    names = [*expected, *(name for name in found if name not in expected)]
    return [n for n in names if n not in expected or n not in found or not same(expected[n], found[n])]


def main() -> int:
    """Runs every program by the reference and by its fault; 1 if a pair shows no difference."""
    faults = [each for each in FAULTS if each.__module__ in MODULES]
    silent = 0
    for broken, program in zip(faults, PROGRAMS, strict=True):
        names = differing(program(ReferenceFramework()), program(broken()))
        silent += not names
        shown = f"differs in {len(names)}: {', '.join(names[:3])}" if names else "NO DIFFERENCE"
        print(f"{broken.__name__:42} {shown}")
    print(f"{len(faults)} faults, {sum(each.kind == 'real' for each in faults)} of them real, {silent} without effect")
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())
