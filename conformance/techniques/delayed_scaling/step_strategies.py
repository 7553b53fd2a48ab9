"""Generates delayed-scaling products and their steps."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from conformance.techniques.delayed_scaling.cases import DelayedCase, DelayedStep
from frameworks.contract import Framework

_POWERS = st.integers(-6, 6)
LONGEST = 8
"""Steps, where the history is shorter; else twice as many as are remembered."""


@st.composite
def delayed(draw: st.DrawFn, framework: Framework) -> DelayedCase:  # noqa: ARG001
    """Histories shorter and longer than the steps, windows of one to three micro-batches."""
    side = st.sampled_from([1, 2, 3, 7, 16, 24, 33])
    history = draw(st.integers(1, 5) | st.sampled_from([16, 17, 20]))
    accumulation = draw(st.sampled_from([1, 1, 1, 2, 3]))
    count = draw(st.integers(2, max(LONGEST, 2 * history) if history > LONGEST else LONGEST))
    steps = tuple(draw(_steps(accumulation)) for _ in range(count))
    sizes = draw(side), draw(side), draw(side)
    return DelayedCase(sizes, history, accumulation, draw(st.integers(-6, 3)), steps, draw(st.integers(0, 99)))


@st.composite
def _steps(draw: st.DrawFn, accumulation: int) -> DelayedStep:
    """Mostly training steps of unlike magnitudes; now and then zeros, a value that is not finite, or a prediction."""
    kind = draw(st.sampled_from(["train"] * 6 + ["zeros", "infinite", "predict"]))
    powers = tuple((draw(_POWERS), draw(_POWERS)) for _ in range(accumulation))
    match kind:
        case "zeros":
            return DelayedStep(((None, None),) * accumulation)
        case "infinite":
            return DelayedStep(powers, special=draw(st.sampled_from([math.inf, math.nan])))
        case "predict":
            return DelayedStep(powers[:1], predicts=True)
        case _:
            return DelayedStep(powers)
