"""Samples of races, and processes that speak a racing process's protocol without a framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.race.processes import Racer
from conformance.race.samples import NEW, OLD, TWIN, RaceSamples, SideSamples

HERE = Path(sys.executable)

SCRIPT = """
import json, sys
facts = json.loads(sys.argv[1])
print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    what, _, count = line.strip().partition(" ")
    said = facts.get(what, {"value": 1000 * int(count)})
    if said == "die":
        sys.exit("the interpreter died")
    if said == "hang":
        import time; time.sleep(60)
    print(said if isinstance(said, str) else json.dumps(said), flush=True)
"""
"""A racing process whose answers are given."""


@dataclass(frozen=True)
class ScriptedRacer(Racer):
    """A side whose process runs the script."""

    answers: str = "{}"

    @property
    def command(self) -> list[str]:
        """The command of its process."""
        return [str(self.python), "-I", "-S", "-c", SCRIPT, self.answers]


FACTS: dict[str, Any] = {
    "load": {"value": 10**9, "version": "1.0", "numpy": "2.4.6", "place": "cpu eager"},
    "first": {"value": 10**8},
    "kinds": {"kinds": ["step", "optimizer", "yardstick"]},
    "memory": {"value": 2**28},
}
"""The answers of a process; a work without one takes a thousand nanoseconds."""


def raced(
    ratios: Mapping[str, float],
    pairs: int = 8,
    spread: float = 0.004,
    noise: float = 0.02,
    rounds: int = 30,
    seed: int = 0,
    numpy: tuple[str, str] = ("2.4.6", "2.4.6"),
) -> RaceSamples:
    """Made-up samples.

    Args:
        ratios: what costs of the new side are multiplied with, by cost, or of the twin, by "twin COST".
        spread: between processes, and noise: between rounds, as deviations of logarithms.
    """
    rng = np.random.default_rng(seed)

    def side(name: str) -> SideSamples:
        def factor(key: str) -> float:
            shift = ratios.get(key, 1.0) if name == NEW else ratios.get(f"twin {key}", 1.0) if name == TWIN else 1.0
            return float(shift * np.exp(rng.normal(0.0, spread)))

        times = {
            key: tuple(2e7 * factor(key) * np.exp(rng.normal(0.0, noise, rounds)))
            for key in ("step", "optimizer", "yardstick")
        }
        once = {key: 1e9 * factor(key) for key in ("first", "import", "memory")}
        return SideSamples(times, once)

    sets = tuple({name: side(name) for name in (OLD, NEW, TWIN)} for _ in range(pairs))
    return RaceSamples("torch", "cpu eager", "encoder", "2.12.1", "2.13.0", numpy, 4, sets)


def drawn(samples: RaceSamples, rng: np.random.Generator, pairs: int) -> RaceSamples:
    """A race of recorded processes: so many of the sets, in each of which the equal processes change their parts."""
    sets = [samples.pairs[place] for place in rng.choice(len(samples.pairs), pairs, replace=False)]
    return replace(samples, pairs=tuple(_parts(each, rng) for each in sets))


def _parts(one: Mapping[str, SideSamples], rng: np.random.Generator) -> dict[str, SideSamples]:
    names = (OLD, NEW, TWIN)
    return {name: one[names[place]] for name, place in zip(names, rng.permutation(3), strict=True)}


def slowed(samples: RaceSamples, times: float) -> RaceSamples:
    """The same race in which everything of the new version takes so many times as long; memory and NumPy do not."""

    def side(one: SideSamples) -> SideSamples:
        rounds = {
            key: [each * (1.0 if key == "yardstick" else times) for each in taken] for key, taken in one.rounds.items()
        }
        once = {key: each * (1.0 if key == "memory" else times) for key, each in one.once.items()}
        return SideSamples(rounds, once)

    return replace(samples, pairs=tuple({**pair, NEW: side(pair[NEW])} for pair in samples.pairs))
