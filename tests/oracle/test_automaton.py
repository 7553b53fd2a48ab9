"""The scaler's automaton against traces that were worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle.automaton import Scale

G, B = True, False
"""A finite update, and a non-finite one."""


@pytest.mark.parametrize(
    ("start", "schedule", "scales", "good"),
    [
        (Scale(1024.0, interval=1), [G, G, B, G], [2048.0, 4096.0, 2048.0, 4096.0], [0, 0, 0, 0]),
        (Scale(1024.0, interval=3), [G, G, G, G], [1024.0, 1024.0, 2048.0, 2048.0], [1, 2, 0, 1]),
        (
            Scale(1024.0, interval=3),
            [G, G, B, G, G, G],
            [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0],
            [1, 2, 0, 1, 2, 0],
        ),
        (Scale(1024.0, interval=2), [B, B, B], [512.0, 256.0, 128.0], [0, 0, 0]),
        (Scale(64.0, growth=4.0, backoff=0.25, interval=1), [B, G, G], [16.0, 64.0, 256.0], [0, 0, 0]),
        (Scale(1024.0, interval=2, good=1), [G], [2048.0], [0]),
        (Scale(1024.0, growth=1.0, backoff=1.0, interval=1), [G, B], [1024.0, 1024.0], [0, 0]),
    ],
)
def test_trace_follows_hand_worked_states(
    start: Scale, schedule: list[bool], scales: list[float], good: list[int]
) -> None:
    states = list(start.trace(schedule))
    assert [state.scale for state in states] == scales
    assert [state.good for state in states] == good


@pytest.mark.parametrize(
    ("start", "schedule", "scales"),
    [
        (Scale(4.0, minimum=1.0), [B] * 4, [2.0, 1.0, 1.0, 1.0]),
        (Scale(4.0, minimum=1.5), [B, B], [2.0, 1.5]),
        (Scale(0.5, minimum=1.0), [B], [0.5]),
        (Scale(2.0**125, interval=1, maximum=2.0**127), [G] * 4, [2.0**126, 2.0**127, 2.0**127, 2.0**127]),
        (Scale(2.0**127, interval=1), [G], [math.inf]),
        (Scale(2.0**-149), [B], [0.0]),
        (Scale(1.0, backoff=0.1), [B], [float(np.float32(0.1))]),
        (Scale(3.0, growth=1.1, interval=1), [G], [float(np.float32(3.0) * np.float32(1.1))]),
    ],
)
def test_trace_at_the_floor_the_maximum_and_without_clamps(
    start: Scale, schedule: list[bool], scales: list[float]
) -> None:
    before = replace(start)
    assert [state.scale for state in start.trace(schedule)] == scales
    assert start == before


def test_after_growth_beyond_the_maximum_keeps_the_scale_and_empties_the_counter() -> None:
    after = Scale(10.0, interval=2, maximum=16.0, good=1).after(G)
    assert (after.scale, after.good) == (10.0, 0)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_the_scale_counts_growths_and_backoffs(schedule: list[bool], interval: int) -> None:
    growths, run = 0, 0
    for finite in schedule:
        run = run + 1 if finite else 0
        growths += finite and run % interval == 0
    *_, last = Scale(1.0, interval=interval), *Scale(1.0, interval=interval).trace(schedule)
    assert last.scale == 2.0 ** (growths - schedule.count(B))
    assert last.good == run % interval
