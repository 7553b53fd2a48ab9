"""Checks that the parts shipped by a framework keep their values under a technique."""

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need
from conformance.known_failures.entries import Exclusion
from fixtures.arrays import Array
from frameworks.contract import SHIPPED, Part, Shipped, Unsupported, Values

BASES = {"recomputed-in-scope": "in-scope"}
"""Techniques that are compared with another technique, instead of with none."""
ROUNDING = 2.0**-9
"""Largest difference, as a share of the largest element; a gradient of `logcumsumexp` times 1024 differs by 2⁻¹¹."""
SMALL = 2.0**-12
"""Smallest scale of a difference, as a share of the part's largest element: a gradient may cancel."""


def judge_parts(subject: Subject, verdict: Verdict, excluded: Sequence[Exclusion], part: Part, technique: str) -> None:
    """Check that every part of a kind keeps its values under a technique, except parts that exclusions name.

    Raises:
        Unsupported: the adapter has no examples of such parts.
    """
    need(subject, SHIPPED[part])
    shipped = subject.framework.get_shipped(part)
    judged = 0
    differing: list[str] = []
    for name in shipped.names():
        features = f"{part[:-1]}={name}", f"technique={technique}"
        if any(exclusion.leaves_out(features) for exclusion in excluded):
            continue
        for result in _differences(shipped, name, technique):
            judged += 1
            differing += [f"{name} {result}"] if result else []
    verdict.equal(tuple(differing), (), f"{part} that differ, {technique}", "differs")
    verdict.holds(judged > 0, f"{part} judged, {technique}", judged, "one or more", "none-judged")


def _differences(shipped: Shipped, name: str, technique: str) -> Iterator[str]:
    """Yield how a part differs under a technique, "" if it does not; nothing if it fails without the technique.

    A framework's parts raise exceptions of any type, so all are caught: without the technique the part has no values to
    compare with, and under the technique the exception itself is the difference.
    """
    try:
        expected = shipped.values(name, BASES.get(technique, ""))
    except Exception:
        return
    try:
        yield difference(shipped.values(name, technique), expected)
    except Unsupported:
        return
    except Exception as error:
        first_line, _, _ = str(error).strip().partition("\n")
        yield f"raises {type(error).__name__}: {first_line[:80]}"


def difference(measured: Values, expected: Values) -> str:
    """Return the largest difference beyond rounding, in words; "" if there is none.

    Values that were not measured are left out. A missing gradient equals one of zeros.
    """
    worst, text = ROUNDING, ""
    floor = SMALL * max((_largest(array) for array in expected.values() if array is not None), default=0.0)
    for key, got in measured.items():
        want = expected.get(key)
        if got is None or want is None:
            present = want if got is None else got
            if present is not None and np.any(present):
                return f"{key}: got {_describe(got)}, want {_describe(want)}"
        elif got.size == want.size == 0:
            continue
        elif got.dtype != want.dtype or got.shape != want.shape:
            return f"{key}: got {_describe(got)}, want {_describe(want)}"
        elif (share := _share(got, want, floor)) > worst:
            worst, text = share, f"{key}: by {share:.1g} of the largest element"
    return text


def _describe(value: Array | None) -> str:
    return "nothing" if value is None else f"{value.dtype}{list(value.shape)}"


def _wide(value: Array) -> Array:
    return value if value.dtype.kind == "c" else value.astype(np.float64)


def _largest(value: Array) -> float:
    """Return the magnitude of the largest finite element."""
    return float(np.abs(np.nan_to_num(_wide(value), posinf=0.0, neginf=0.0)).max(initial=0.0))


def _share(got: Array, want: Array, floor: float) -> float:
    """Return the largest difference as a share of the largest element; infinite if only one of two is finite."""
    got, want = _wide(got), _wide(want)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    gap = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
    return gap / max(_largest(want), floor) if gap else 0.0
