"""The behaviours by name, each with the outcome of its test, and the state that every one should leave alone."""

from __future__ import annotations

import decimal
import gc
import locale
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from results.record.outcomes import Outcome

BIG = 100 * 2**20
"""Characters of what is too long."""

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
        "recursion": sys.getrecursionlimit(),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)],
        "precision": decimal.getcontext().prec,
        "locale": locale.setlocale(locale.LC_ALL),
        "errors": np.geterr(),
        "collector": gc.isenabled(),
        "builtins": [str(open), str(print), str(len)],
        "tracing": str(sys.gettrace()),
        "hooks": str(threading.excepthook),
        "json": "json" in sys.modules,
    }
