"""Times of several works in one process, taken in turn, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns, process_time_ns

import numpy as np

WARM_UP = 3
"""Rounds that are not timed, at the start."""


def clock_of(device: str) -> Callable[[], int]:
    """The clock for steps on a device, in nanoseconds.

    On a CPU it is the time that this process kept processors busy, which waiting for one is no part of. A step on any
    other device is mostly waited for, so there it is the time that passes.
    """
    return process_time_ns if device == "cpu" else perf_counter_ns


def interleaved(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    rng: np.random.Generator,
    clock: Callable[[], int] = perf_counter_ns,
) -> dict[str, list[int]]:
    """`rounds` times of every work by the clock; time i of one was taken next to time i of the others.

    The order is drawn anew for every round, so that none of them profits from its place.
    """
    names = list(works)
    times: dict[str, list[int]] = {name: [] for name in names}
    for turn in range(-WARM_UP, rounds):
        for place in rng.permutation(len(names)):
            name = names[place]
            begin = clock()
            works[name]()
            spent = clock() - begin
            if turn >= 0:
                times[name].append(spent)
    return times
