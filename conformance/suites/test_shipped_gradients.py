"""The gradient of every elementwise function that a framework ships, at points where others go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from conformance.judging.kit import Subject, Verdict, clause, need
from conformance.laws.holding import Excluded
from fixtures.arrays import Array
from frameworks.contract import Capability, Shipped

MAGNITUDES = (2.0**-20, 0.5, 1.0, 2.0, 3.0, 5.0, 20.0, 50.0, 100.0)
POINTS = np.array([0.0, *MAGNITUDES, *(-each for each in MAGNITUDES)])
PLACES = len(POINTS)
"""Elements of an array: more than a vector of a processor, and no multiple of one."""
ORDINARY = np.random.default_rng(0).uniform(0.25, 0.75, PLACES)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 5.0, -5.0, 100.0, -100.0)
STEP = 1e-6
"""Of differences, as a share of the point if that is beyond 1."""
SMOOTH = 1e-3
"""How far differences to both sides, and by a quarter of the step, may be apart."""
NEAR = 2.0**-6
TINY = 2.0**-100


@clause("composition.shipped-gradients")
def test_a_gradient_is_the_derivative(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    _judge(subject, verdict, excluded, "derivative", _from_differences)


@clause("composition.shipped-gradients")
def test_a_gradient_depends_on_no_place(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    _judge(subject, verdict, excluded, "place", _by_place)


Check = Callable[[Shipped, str], Iterator[str]]


def _judge(subject: Subject, verdict: Verdict, excluded: Excluded, technique: str, check: Check) -> None:
    need(subject, Capability.SHIPPED_OPERATIONS)
    shipped = subject.framework.shipped("operations")
    differing: list[str] = []
    counted = 0
    for name in shipped.names():
        features = f"operation={name}", f"technique={technique}"
        if any(each.leaves_out(features) for each in excluded):
            continue
        with np.errstate(all="ignore"):
            if _is_elementwise(shipped, name):
                counted += 1
                differing += [f"{name} {text}" for text in check(shipped, name)]
    verdict.equal(tuple(differing), (), f"gradients that are wrong, {technique}", "wrong-gradient")
    verdict.holds(counted > 0, "operations judged", counted, "one or more", "none-compared")


def _is_elementwise(shipped: Shipped, name: str) -> bool:
    """Whether a part is a function of single float64 elements that draws nothing."""
    changed = ORDINARY.copy()
    changed[0] = 0.9
    try:
        values, gradients = shipped.at(name, ORDINARY)
        others, turned = (shipped.at(name, points)[0] for points in (changed, ORDINARY[::-1].copy()))
        first, second = (shipped.at(name, POINTS)[0] for _ in range(2))
    except Exception:
        return False
    if values.dtype != np.float64 or not values.shape == gradients.shape == others.shape == ORDINARY.shape:
        return False
    same = np.allclose(values[1:], others[1:], 1e-9) and np.allclose(values, turned[::-1], 1e-9)
    return same and np.array_equal(first, second, equal_nan=True)


def _from_differences(shipped: Shipped, name: str) -> Iterator[str]:
    """The first point where a float32 gradient is not near the differences of float64 values."""

    def value(points: Array) -> Array:
        return shipped.at(name, points)[0]

    step = STEP * np.maximum(1.0, np.abs(POINTS))
    middle = value(POINTS)
    left, right = (middle - value(POINTS - step)) / step, (value(POINTS + step) - middle) / step
    slope = (left + right) / 2.0
    nearer = 2.0 * (value(POINTS + step / 4.0) - value(POINTS - step / 4.0)) / step
    apart = np.maximum(np.abs(left - right), np.abs(slope - nearer))
    values, gradients = shipped.at(name, POINTS.astype(np.float32))
    size = np.maximum(1.0, np.abs(slope))
    judged = np.isfinite(apart) & (apart <= SMOOTH * size) & np.isfinite(values) & (size < 2.0**100)
    wrong = judged & ~(np.abs(gradients.astype(np.float64) - slope) <= NEAR * size)
    for place in np.flatnonzero(wrong)[:1]:
        yield f"at {POINTS[place]:g}: got {gradients[place]:g}, want {slope[place]:.6g}"


def _by_place(shipped: Shipped, name: str) -> Iterator[str]:
    """The first special point whose gradient differs between elements of one array."""
    for point in SPECIAL:
        gradients = shipped.at(name, np.full(PLACES, point, np.float32))[1]
        first = gradients[0]
        gap = np.abs(gradients - first)
        same = (gradients == first) | (gap <= NEAR * np.abs(first) + TINY) | (np.isnan(gradients) & np.isnan(first))
        for place in np.flatnonzero(~same)[:1]:
            yield f"at {point:g}: got {gradients[place]:g} in place {place}, and {first:g} in place 0"
            return
