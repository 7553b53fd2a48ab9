"""The behaviours by name, each with the outcome of its test, and the state that every one should leave alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from results.record.outcomes import Outcome

BIG = 100 * 2**20
"""Characters of what is too long."""

LATER_S = 36_000.0
"""When an alarm rings that a behaviour leaves set: after the end of any run."""

BEHAVIOURS: dict[str, Behaviour] = {}
"""What leaves the process alive, by name."""

DEADLY: dict[str, Behaviour] = {}
"""What takes the process with it, by name."""


@dataclass(frozen=True)
class Behaviour:
    """What a framework does, what it returns to the test, and the outcome of that test."""

    act: Callable[[], object]
    outcome: Outcome


def behaves(outcome: Outcome, among: dict[str, Behaviour] = BEHAVIOURS) -> Callable[[Callable[[], object]], object]:
    """Adds a function to the behaviours."""

    def add(act: Callable[[], object]) -> object:
        among[act.__name__] = Behaviour(act, outcome)
        return act

    return add


def surroundings() -> dict[str, object]:
    """What every test should find as it was when the session began."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {
        "folder": os.getcwd(),
        "variables": environ,
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0] > LATER_S / 2,
        "errors": np.geterr(),
    }
