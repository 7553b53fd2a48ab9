"""Times of several works in one process, taken in turn, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns

import numpy as np

WARM_UP = 3
"""Rounds that are not timed, at the start."""


def interleaved(
    works: Mapping[str, Callable[[], object]], rounds: int, rng: np.random.Generator
) -> dict[str, list[int]]:
    """`rounds` times of every work, in nanoseconds; time i of one was taken next to time i of the others.

    The order is drawn anew for every round, so that none of them profits from its place.
    """
    names = list(works)
    times: dict[str, list[int]] = {name: [] for name in names}
    for turn in range(-WARM_UP, rounds):
        for place in rng.permutation(len(names)):
            name = names[place]
            begin = perf_counter_ns()
            works[name]()
            spent = perf_counter_ns() - begin
            if turn >= 0:
                times[name].append(spent)
    return times
