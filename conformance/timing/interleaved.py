"""Interleaved timing of several workloads in one process, so that disturbances affect all of them.

Other workers of the same run wait meanwhile (`conformance.timing.exclusive`).
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from conformance.timing import exclusive
from frameworks.base import elapsed

WARM_UP = 3
"""Warm-up rounds. Other workers run during the first, in which frameworks compile."""


def interleaved(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    rng: np.random.Generator,
    timed: Callable[[Callable[[], object]], int] = elapsed,
) -> dict[str, list[int]]:
    """Times every workload `rounds` times, in nanoseconds; time i of one is taken next to time i of the others.

    The order is random in every round, so that no workload benefits from its position.

    Args:
        timed: runs a workload and returns its time, by the host's clock or by `Framework.timed`.
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
