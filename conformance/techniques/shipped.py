"""Whether what a framework ships keeps its values and gradients under a technique."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need
from conformance.known_failures.reading import Exclusion
from fixtures.arrays import Array
from frameworks.contract import SHIPPED, Part, Shipped, Unsupported, Values

BASES = {"recomputed-in-scope": "in-scope"}
"""Techniques that are measured against another one, instead of against none."""
ROUNDING = 2.0**-9
"""Largest difference, as a share of the largest element; a gradient of `logcumsumexp` times 1024 differs by 2⁻¹¹."""


SMALL = 2.0**-12
"""The largest element of a value counts as no less than this share of the part's largest one: a gradient may cancel."""


def judge_parts(subject: Subject, verdict: Verdict, excluded: Sequence[Exclusion], part: Part, technique: str) -> None:
    """Judges that every part of a kind keeps its values under a technique, but for what exclusions name.

    Raises:
        Unsupported: the adapter has no examples of them.
    """
    need(subject, SHIPPED[part])
    shipped = subject.framework.shipped(part)
    judged = 0
    differing: list[str] = []
    for name in shipped.names():
        features = f"{part[:-1]}={name}", f"technique={technique}"
        if any(each.leaves_out(features) for each in excluded):
            continue
        for result in _differences(shipped, name, technique):
            judged += 1
            differing += [f"{name} {result}"] if result else []
    verdict.equal(tuple(differing), (), f"{part} that differ, {technique}", "differs")
    verdict.holds(judged > 0, f"{part} judged, {technique}", judged, "one or more", "none-judged")


def _differences(shipped: Shipped, name: str, technique: str) -> Iterator[str]:
    """How a part differs under a technique, "" if it does not; nothing where it does not run without the technique."""
    try:
        expected = shipped.values(name, BASES.get(technique, ""))
    except Exception:
        return
    try:
        yield difference(shipped.values(name, technique), expected)
    except Unsupported:
        return
    except Exception as error:
        yield f"raises {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:80]}"


def difference(measured: Values, expected: Values) -> str:
    """What differs most, beyond rounding; "" for nothing.

    Values that were not measured are left out, and no gradient is as good as one of zeros.
    """
    worst, text = ROUNDING, ""
    floor = SMALL * max((_largest(each) for each in expected.values() if each is not None), default=0.0)
    for key, got in measured.items():
        want = expected.get(key)
        if got is None or want is None:
            present = want if got is None else got
            if present is not None and np.any(present):
                return f"{key}: got {_kind(got)}, want {_kind(want)}"
        elif got.size == want.size == 0:
            continue
        elif got.dtype != want.dtype or got.shape != want.shape:
            return f"{key}: got {_kind(got)}, want {_kind(want)}"
        elif (share := _share(got, want, floor)) > worst:
            worst, text = share, f"{key}: by {share:.1g} of the largest element"
    return text


def _kind(value: Array | None) -> str:
    return "nothing" if value is None else f"{value.dtype}{list(value.shape)}"


def _wide(value: Array) -> Array:
    return value if value.dtype.kind == "c" else value.astype(np.float64)


def _largest(value: Array) -> float:
    """The magnitude of the largest finite element."""
    return float(np.abs(np.nan_to_num(_wide(value), posinf=0.0, neginf=0.0)).max(initial=0.0))


def _share(got: Array, want: Array, floor: float) -> float:
    """The largest difference as a share of the largest element; infinite where only one of two elements is finite."""
    got, want = _wide(got), _wide(want)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    gap = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
    return gap / max(_largest(want), floor) if gap else 0.0
