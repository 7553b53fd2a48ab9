"""Runs a race: pairs of processes one after the other, and within each pair rounds in which the sides take turns."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from conformance.race.processes import START_S, RaceError, RaceProcess, Racer, started
from conformance.race.samples import NEW, OLD, TWIN, RaceSamples, SideSamples

if TYPE_CHECKING:
    import numpy as np

SAMPLE_NS = 5_000_000
"""What a sample of steps takes at least: far more than the clock's resolution, and so short that what slows the machine
slows the sides of a round alike."""

FEWEST_PAIRS = 5
PAIRS = 8
ROUNDS = 240
LIMIT_S = 300.0

EVERY = 3
"""Rounds from one sample of the optimizer step and of NumPy work to the next."""

YARDSTICKS = 2
"""Rounds of NumPy work in a sample of it."""

_MOST_STEPS = 1000

Watch = Callable[[range], Iterator[int]]


@dataclass(frozen=True)
class RaceSettings:
    """How a race is run.

    Attributes:
        pairs, rounds: how many there are.
        limit_s: after so many seconds no pair begins, if there are FEWEST_PAIRS.
        seed: of the orders.
    """

    pairs: int = PAIRS
    rounds: int = ROUNDS
    limit_s: float = LIMIT_S
    seed: int = 0


@dataclass(frozen=True)
class _Facts:
    """What a process says when its framework is loaded, and the works that it can do."""

    version: str
    numpy: str
    place: str
    kinds: tuple[str, ...]
    step_ns: int


def race(old: Racer, new: Racer, settings: RaceSettings, watch: Watch = iter) -> RaceSamples:
    """The samples of a race of two versions, with a second process of the old one in each pair.

    Raises:
        RaceError: a side cannot be started or measured, or the sides differ in more than their version.
    """
    sides = {OLD: old, NEW: new, TWIN: old}
    facts = {side: _probed(side, sides[side]) for side in (OLD, NEW)}
    if facts[OLD].place != facts[NEW].place:
        raise RaceError(f"the sides run on {facts[OLD].place} and {facts[NEW].place}; choose --device and --mode")
    kinds = [kind for kind in facts[OLD].kinds if kind in facts[NEW].kinds]
    if kinds[:1] != ["step"]:
        raise RaceError(f"the sides can do {', '.join(kinds) or 'nothing'} in rounds, want step first")
    count = min(max(1, math.ceil(SAMPLE_NS / facts[OLD].step_ns)), _MOST_STEPS)
    import numpy as np

    rng = np.random.default_rng(settings.seed)
    begin, load, when = time.monotonic(), os.getloadavg()[0], datetime.now(UTC).isoformat(timespec="seconds")
    pairs: list[dict[str, SideSamples]] = []
    for _ in watch(range(settings.pairs)):
        if len(pairs) >= FEWEST_PAIRS and time.monotonic() - begin > settings.limit_s:
            break
        pairs.append(_pair(sides, kinds, count, settings.rounds, rng))
    return RaceSamples(
        framework=old.framework,
        place=facts[OLD].place,
        fixture=old.fixture,
        old=facts[OLD].version,
        new=facts[NEW].version,
        numpy=(facts[OLD].numpy, facts[NEW].numpy),
        count=count,
        pairs=tuple(pairs),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        started=when,
    )


def _probed(side: str, racer: Racer) -> _Facts:
    """A process before the race, which also reads the files that later ones import."""
    with started(side, racer) as process:
        said: dict[str, Any] = process.ask("load", limit_s=START_S)
        process.value("first", limit_s=START_S)
        kinds = tuple(map(str, process.ask("kinds", limit_s=START_S)["kinds"]))
        step = min(process.value("step") for _ in range(3))
        return _Facts(str(said["version"]), str(said["numpy"]), str(said["place"]), kinds, step)


def _pair(
    sides: Mapping[str, Racer], kinds: list[str], count: int, rounds: int, rng: np.random.Generator
) -> dict[str, SideSamples]:
    """Starts the processes in a drawn order, and lets them take turns."""
    names = [*sides]
    counts = {"step": count, "optimizer": count, "yardstick": YARDSTICKS}
    with ExitStack() as stack:
        processes: dict[str, RaceProcess] = {}
        once: dict[str, dict[str, float]] = {side: {} for side in names}
        for side in _shuffled(names, rng):
            processes[side] = stack.enter_context(started(side, sides[side]))
            once[side]["import"] = processes[side].value("load", limit_s=START_S)
        for side in _shuffled(names, rng):
            once[side]["first"] = processes[side].value("first", limit_s=START_S)
        times: dict[str, dict[str, list[float]]] = {side: {kind: [] for kind in kinds} for side in names}
        for turn in range(-EVERY, rounds):
            for kind in kinds if turn % EVERY == 0 else kinds[:1]:
                for side in _shuffled(names, rng):
                    spent = processes[side].value(kind, counts[kind])
                    if turn >= 0:
                        times[side][kind].append(spent)
        for side in names:
            once[side]["memory"] = processes[side].value("memory")
    return {side: SideSamples(times[side], once[side]) for side in names}


def _shuffled(names: list[str], rng: np.random.Generator) -> list[str]:
    return [names[place] for place in rng.permutation(len(names))]
