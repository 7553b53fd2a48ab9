"""Actions of a framework that are no computation, each with the outcome of the test that it happens in.

There are exceptions, values that no comparison accepts, changes of the process, and ends of the process.
"""

from __future__ import annotations

import collections
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from results.record.model import Outcome

BIG = 10 * 2**20
"""Characters of a text that is too long."""


@dataclass(frozen=True)
class Behaviour:
    """An action, and the outcome of the test that it happens in."""

    act: Callable[[], object]
    outcome: Outcome


def surroundings() -> dict[str, object]:
    """The state that every test should find as it was when the session began."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {
        "folder": os.getcwd(),
        "variables": environ,
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "errors": np.geterr(),
    }


class HostileError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


def throw(error: BaseException) -> object:
    raise error


RAISED = {
    "text_raises": HostileError(),
    "half_a_surrogate_pair": ValueError("\ud800 and \udfff"),
    "escapes_for_a_terminal": ValueError("\x1b[2J\x1b]0;x\x07\x9b31m\u202e"),
    "long_text": ValueError("x" * BIG),
    "system_exit": SystemExit(0),
    "keyboard_interrupt": KeyboardInterrupt(),
    "base_exception": type("Else", (BaseException,), {})("else"),
    "group_of_exceptions": ExceptionGroup("group", [ValueError("first"), HostileError()]),
    "cannot_be_pickled": ValueError("locked", threading.Lock(), lambda: None),
    "pytest_exit": pytest.exit.Exception("", 0),
    "pytest_skip": pytest.skip.Exception("not today"),
    "pytest_xfail": pytest.xfail.Exception("not today"),
}
RETURNED = {"not_a_number": float("nan"), "nothing": None, "another_shape": np.ones((3, 0, 2))}


def fork_that_goes_on() -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)


def another_folder() -> None:
    os.makedirs("removed", exist_ok=True)
    os.chdir("removed")
    os.rmdir(os.getcwd())


def replaced_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def handlers_replaced() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(7))


def warnings_are_errors() -> None:
    warnings.simplefilter("error")
    warnings.showwarning = None  # type: ignore[assignment]


def variables_changed() -> None:
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "77"


SURVIVED: dict[str, Callable[[], object]] = {
    "fork_that_goes_on": fork_that_goes_on,
    "another_folder": another_folder,
    "replaced_streams": replaced_streams,
    "handlers_replaced": handlers_replaced,
    "threads_left_running": lambda: threading.Thread(target=time.sleep, args=(3600.0,), daemon=False).start(),
    "warnings_are_errors": warnings_are_errors,
    "variables_changed": variables_changed,
    "floating_point_errors_raise": lambda: np.seterr(all="raise"),
    "prints_much": lambda: [sys.stdout.write("x" * (BIG // 10)) for _ in range(10)],
}


def swallow_every_exception() -> None:
    while True:
        try:
            time.sleep(3600.0)
        except BaseException:
            continue


BEHAVIOURS = {
    **{name: Behaviour(partial(throw, error), Outcome.ERROR) for name, error in RAISED.items()},
    **{name: Behaviour(lambda value=value: value, Outcome.FAIL) for name, value in RETURNED.items()},
    **{name: Behaviour(lambda act=act: (act(), 1.0)[1], Outcome.PASS) for name, act in SURVIVED.items()},
}
"""Actions that leave the process alive, by name; with those of `SURVIVED` the framework's result is right."""

DEADLY = {
    "ends_the_process": Behaviour(partial(os._exit, 0), Outcome.CRASH),
    "aborts": Behaviour(os.abort, Outcome.CRASH),
    "is_killed": Behaviour(lambda: os.kill(os.getpid(), signal.SIGKILL), Outcome.CRASH),
    "sleeps": Behaviour(partial(time.sleep, 3600.0), Outcome.TIMEOUT),
    "swallows_every_exception": Behaviour(swallow_every_exception, Outcome.TIMEOUT),
    "loops_in_c": Behaviour(lambda: collections.deque(itertools.repeat(1), maxlen=0), Outcome.TIMEOUT),
}
"""Actions that end the process, by name."""
