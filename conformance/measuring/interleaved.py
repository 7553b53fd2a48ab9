"""Times of several works in one process, taken in turn, so that what disturbs the machine disturbs all of them.

Other workers of the same run wait meanwhile (`conformance.measuring.exclusive`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from conformance.measuring import exclusive
from frameworks.base import elapsed

WARM_UP = 3
"""Rounds that are not timed, at the start. Other workers run during the first, in which frameworks compile."""


def interleaved(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    rng: np.random.Generator,
    timed: Callable[[Callable[[], object]], int] = elapsed,
) -> dict[str, list[int]]:
    """`rounds` times of every work in nanoseconds; time i of one was taken next to time i of the others.

    The order is drawn anew for every round, so that none of them profits from its place.

    Args:
        timed: runs a work and tells its time, by the host's clock or as a framework does (`Framework.timed`).
    """
    names = list(works)
    times: dict[str, list[int]] = {name: [] for name in names}

    def run(turns: Iterable[int]) -> None:
        for turn in turns:
            for place in rng.permutation(len(names)):
                name = names[place]
                spent = timed(works[name])
                if turn >= 0:
                    times[name].append(spent)

    run([-WARM_UP])
    with exclusive.alone():
        run(range(1 - WARM_UP, rounds))
    return times
