"""One process that times the work: `python -m benchmarks.calibration.worker SEED RUNS ROUNDS SIDE...` prints JSON.

Every run makes its sides anew. In each round every side is timed once, in an order that is drawn for the round, so that
no side profits from its place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np
import psutil

from benchmarks.calibration.work import SLOWER, STEPS, Work, foreign, training
from benchmarks.kit.processes import TICK_NS
from conformance.measuring.interleaved import interleaved


def side(name: str, seed: int) -> Work:
    """The work of a side.

    Args:
        name: "plain" and "twin" are the same training, "slower" is 5 % more of it; "technique" has one more forward
            pass a step, as recomputation has, and "slower technique" is 5 % more of that; "foreign" is NumPy alone.
    """
    if name == "foreign":
        return foreign(seed)
    return training(SLOWER if name.startswith("slower") else STEPS, seed, recomputing=name.endswith("technique"))


def timed(works: Mapping[str, Work], rounds: int, rng: np.random.Generator) -> dict[str, list[int]]:
    """`rounds` times of every side, in ticks; sample i of one side was taken next to sample i of the others."""
    return {name: [round(t / TICK_NS) for t in times] for name, times in interleaved(works, rounds, rng).items()}


def used_by_others() -> float:
    """Processor time in seconds that everything but this process has used since the machine started."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    return float(machine.user + machine.system - own.user - own.system)


def main(arguments: Sequence[str]) -> int:
    """Prints a list of runs, one object each: the cores that others kept busy meanwhile, and the times by side."""
    seed, runs, rounds = map(int, arguments[:3])
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        works = {name: side(name, int(rng.integers(2**32))) for name in arguments[3:]}
        begin, used = monotonic(), used_by_others()
        times = timed(works, rounds, rng)
        others = (used_by_others() - used) / (monotonic() - begin)
        found.append({"others": round(max(others, 0.0), 2), "times": times})
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
