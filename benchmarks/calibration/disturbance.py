"""A load that comes and goes: matrix products for a while, then nothing for a while, until it is terminated."""

from __future__ import annotations

import sys
from time import monotonic, sleep

import numpy as np

SIZE = 400
SHORTEST_S, LONGEST_S = 0.05, 0.5


def main(seed: int) -> None:
    """Never returns."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(2, SIZE, SIZE))
    while True:
        end = monotonic() + rng.uniform(SHORTEST_S, LONGEST_S)
        while monotonic() < end:
            left @ right
        sleep(rng.uniform(SHORTEST_S, LONGEST_S))


if __name__ == "__main__":
    main(int(sys.argv[1]))
