"""The gradient of every elementwise function that a framework ships, at points where gradients are often wrong."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.generative.verdicts import Excluded
from fixtures.arrays import Array
from frameworks.contract import Capability, Shipped

MAGNITUDES = (2.0**-20, 0.5, 1.0, 2.0, 3.0, 5.0, 20.0, 50.0, 100.0)
POINTS = np.array([0.0, *MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)])
PLACES = len(POINTS)
"""Number of elements of an array: more than a vector register holds, and not a multiple of its width."""
ORDINARY = np.random.default_rng(0).uniform(0.25, 0.75, PLACES)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 5.0, -5.0, 100.0, -100.0)
STEP = 1e-6
"""Step of finite differences; relative to the point if the point's magnitude exceeds 1."""
SMOOTH = 1e-3
"""Largest distance between the differences to both sides, and by a quarter of the step, at a smooth point."""
NEAR = 2.0**-6
TINY = 2.0**-100
Check = Callable[[Shipped, str, int], Iterator[str]]


@clause("composition.shipped-gradients")
def test_gradient_matches_numerical_derivative(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    _judge(subject, verdict, excluded, "derivative", _from_differences)


@clause("composition.shipped-gradients")
def test_gradient_is_independent_of_position(subject: Subject, verdict: Verdict, excluded: Excluded) -> None:
    _judge(subject, verdict, excluded, "place", _by_place)


def _judge(subject: Subject, verdict: Verdict, excluded: Excluded, technique: str, check: Check) -> None:
    need(subject, Capability.SHIPPED_OPERATIONS)
    shipped = subject.framework.get_shipped("operations")
    differing: list[str] = []
    counted = 0
    for name in shipped.names():
        features = f"operation={name}", f"technique={technique}"
        if any(exclusion.leaves_out(features) for exclusion in excluded):
            continue
        with np.errstate(all="ignore"):
            for count in (1, 2):
                if _is_elementwise(shipped, name, count):
                    counted += 1
                    differing += [f"{name} {text}" for text in check(shipped, name, count)]
    verdict.equal(tuple(differing), (), f"gradients that are wrong, {technique}", "wrong-gradient")
    verdict.holds(counted > 0, "operations judged", counted, "one or more", "none-compared")


def _points(count: int) -> list[Array]:
    """Return the points as arrays: one array for one argument, two with all pairs for two arguments."""
    return [grid.ravel() for grid in np.meshgrid(*[POINTS] * count)]


def _is_elementwise(shipped: Shipped, name: str, count: int) -> bool:
    """Return whether a part is a deterministic elementwise function of `count` float64 arrays."""
    ordinary = [ORDINARY[::-1].copy(), ORDINARY][-count:]
    changed = [array.copy() for array in ordinary]
    for array in changed:
        array[0] = 0.9
    try:
        values, *gradients = shipped.at(name, *ordinary)
        if values.dtype != np.float64 or {array.shape for array in (values, *gradients)} != {ORDINARY.shape}:
            return False
        others, reversed_values = (
            shipped.at(name, *arguments)[0] for arguments in (changed, [a[::-1].copy() for a in ordinary])
        )
        if not np.allclose(values[1:], others[1:], 1e-9) or not np.allclose(values, reversed_values[::-1], 1e-9):
            return False
        first, second = (shipped.at(name, *_points(count))[0] for _ in range(2))
    except Exception:
        return False
    return np.array_equal(first, second, equal_nan=True)


def _from_differences(shipped: Shipped, name: str, count: int) -> Iterator[str]:
    """Yield a message for the first point where a float32 gradient is not near the differences of float64 values."""
    points = _points(count)
    values, *gradients = shipped.at(name, *(array.astype(np.float32) for array in points))
    for argument, gradient in enumerate(gradients):
        slope, judged = _slopes(shipped, name, points, argument)
        size = np.maximum(1.0, np.abs(slope))
        judged &= np.isfinite(values) & (size < 2.0**100)
        wrong = judged & ~(np.abs(gradient.astype(np.float64) - slope) <= NEAR * size)
        for index in np.flatnonzero(wrong)[:1]:
            where = ", ".join(f"{array[index]:g}" for array in points)
            of = f" of argument {argument}" if count > 1 else ""
            yield f"at {where}{of}: got {gradient[index]:g}, want {slope[index]:.6g}"


def _slopes(shipped: Shipped, name: str, points: Sequence[Array], argument: int) -> tuple[Array, Array]:
    """Return differences of float64 values along an argument, and where they agree with one-sided and smaller steps."""
    step = STEP * np.maximum(1.0, np.abs(points[argument]))

    def value(by: float) -> Array:
        moved = [array + by * step if index == argument else array for index, array in enumerate(points)]
        return shipped.at(name, *moved)[0]

    middle, before, after = value(0.0), value(-1.0), value(1.0)
    backward, forward = (middle - before) / step, (after - middle) / step
    slope = (backward + forward) / 2.0
    nearer = 2.0 * (value(0.25) - value(-0.25)) / step
    disagreement = np.maximum(np.abs(backward - forward), np.abs(slope - nearer))
    return slope, np.isfinite(disagreement) & (disagreement <= SMOOTH * np.maximum(1.0, np.abs(slope)))


def _by_place(shipped: Shipped, name: str, count: int) -> Iterator[str]:
    """Yield a message for the first special point whose gradient differs between elements of one array."""
    for point in SPECIAL:
        for gradients in shipped.at(name, *[np.full(PLACES, point, np.float32)] * count)[1:]:
            first = gradients[0]
            gap = np.abs(gradients - first)
            same = (gradients == first) | (gap <= NEAR * np.abs(first) + TINY) | (np.isnan(gradients) & np.isnan(first))
            for index in np.flatnonzero(~same)[:1]:
                yield f"at {point:g}: got {gradients[index]:g} in place {index}, and {first:g} in place 0"
                return
