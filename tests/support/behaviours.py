"""What a framework may do that is no computation: each behaviour with the outcome of the test that it happens in.

There are exceptions that are hard to show, to send or to catch, values that can neither be compared nor shown, changes
of the process that outlast the test, and ends of the process.
"""

from __future__ import annotations

import collections
import ctypes
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
from typing import Any

import numpy as np
import pytest

from frameworks.contract import Capability, Unsupported
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
    """Adds a function to the behaviours; where it returns, the framework's result is right."""

    def add(act: Callable[[], object]) -> object:
        def right() -> float:
            act()
            return 1.0

        among[act.__name__] = Behaviour(right, outcome)
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


# ---------------------------------------------------------------- exceptions


class HostileError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


def raises(error: BaseException | type[BaseException]) -> object:
    raise error


def chained(length: int) -> Exception:
    """An exception with so many causes."""
    last = first = ValueError("the first")
    for number in range(length):
        last.__cause__ = ValueError(f"cause {number}")
        last = last.__cause__
    return first


def circular() -> Exception:
    """Two exceptions that are each other's cause."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def grouped(depth: int) -> BaseException:
    """A group within a group, so deep."""
    error: Exception = ValueError("in the middle")
    for number in range(depth):
        error = ExceptionGroup(f"group {number}", [error, HostileError()])
    return error


def noted() -> Exception:
    """An exception whose notes are no texts."""
    error = ValueError("noted")
    error.__notes__ = [object(), HostileError()]  # type: ignore[list-item]
    return error


def locked() -> Exception:
    """An exception that cannot be pickled."""
    return ValueError("locked", threading.Lock(), lambda: None)


RAISED: dict[str, BaseException | type[BaseException]] = {
    "text_raises": HostileError(),
    "text_exits": ExitingError(),
    "half_a_surrogate_pair": ValueError("\ud800 and \udfff"),
    "escapes_for_a_terminal": ValueError("\x1b[2J\x1b]0;x\x07\x9b31m\u202e"),
    "name_that_cannot_be_sent": type("No\x1bName", (Exception,), {})("named"),
    "text_of_100_MB": ValueError("x" * BIG) if os.environ.get("BEHAVING") else ValueError,
    "system_exit": SystemExit(0),
    "keyboard_interrupt": KeyboardInterrupt(),
    "generator_exit": GeneratorExit(),
    "stop_iteration": StopIteration(1),
    "memory_error": MemoryError(),
    "base_exception": type("Else", (BaseException,), {})("else"),
    "group_of_exceptions": grouped(8),
    "circular_causes": circular(),
    "endless_causes": chained(20_000),
    "notes_that_are_no_texts": noted(),
    "cannot_be_pickled": locked(),
    "pytest_exit": pytest.exit.Exception("", 0),
    "pytest_skip": pytest.skip.Exception("not today"),
    "pytest_xfail": pytest.xfail.Exception("not today"),
}
BEHAVIOURS.update({name: Behaviour(partial(raises, error), Outcome.ERROR) for name, error in RAISED.items()})


@behaves(Outcome.ERROR)
def deep_recursion() -> object:
    return deep_recursion()


@behaves(Outcome.ERROR)
def refusal_whose_attempt_exits() -> object:
    raise Unsupported(Capability.CLIP, "no clipping", attempt=lambda: sys.exit(0))


# ---------------------------------------------------------------- values


class Unlike:
    """A value that can neither be compared nor shown."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("never equal")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


RETURNED: dict[str, tuple[Any, Outcome]] = {
    "not_a_number": (float("nan"), Outcome.FAIL),
    "nothing": (None, Outcome.FAIL),
    "a_generator": ((n for n in ()), Outcome.FAIL),
    "array_of_objects": (np.array([Unlike(), None], dtype=object), Outcome.ERROR),
    "another_shape": (np.ones((3, 0, 2)), Outcome.FAIL),
    "value_that_cannot_be_compared": (Unlike(), Outcome.ERROR),
}
BEHAVIOURS.update({name: Behaviour(lambda value=value: value, outcome) for name, (value, outcome) in RETURNED.items()})


# ---------------------------------------------------------------- changes of the process


@behaves(Outcome.PASS)
def fork_that_goes_on() -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)


@behaves(Outcome.PASS)
def fork_that_raises() -> None:
    child = os.fork()
    if not child:
        raise ValueError("in the child")
    os.waitpid(child, 0)


@behaves(Outcome.PASS)
def another_folder() -> None:
    os.makedirs("gone", exist_ok=True)
    os.chdir("gone")
    os.rmdir(os.getcwd())


@behaves(Outcome.PASS)
def closed_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.close()
        stream.close()


@behaves(Outcome.PASS)
def closed_descriptors() -> None:
    numbers = {1, 2, sys.stdout.fileno(), sys.stderr.fileno()}
    for number in numbers:
        os.close(number)


@behaves(Outcome.PASS)
def replaced_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


@behaves(Outcome.PASS)
def handlers_replaced() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(7))


@behaves(Outcome.PASS)
def alarm_left_ticking() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LATER_S)


@behaves(Outcome.PASS)
def threads_left_running() -> None:
    threading.Thread(target=time.sleep, args=(3600.0,), daemon=False).start()


@behaves(Outcome.PASS)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")
    warnings.showwarning = None  # type: ignore[assignment]


@behaves(Outcome.PASS)
def variables_changed() -> None:
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "77"


@behaves(Outcome.PASS)
def floating_point_errors_raise() -> None:
    np.seterr(all="raise")


@behaves(Outcome.PASS)
def prints_100_megabytes() -> None:
    for _ in range(100):
        sys.stdout.write("x" * (BIG // 100))


# ---------------------------------------------------------------- ends of the process


@behaves(Outcome.CRASH, DEADLY)
def ends_the_process() -> None:
    os._exit(0)


@behaves(Outcome.CRASH, DEADLY)
def aborts() -> None:
    os.abort()


@behaves(Outcome.CRASH, DEADLY)
def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@behaves(Outcome.CRASH, DEADLY)
def reads_address_zero() -> None:
    ctypes.string_at(0)


@behaves(Outcome.CRASH, DEADLY)
def closes_every_file() -> None:
    os.closerange(3, 1024)
    os._exit(0)


@behaves(Outcome.TIMEOUT, DEADLY)
def sleeps() -> None:
    time.sleep(3600.0)


@behaves(Outcome.TIMEOUT, DEADLY)
def swallows_every_exception() -> None:
    while True:
        try:
            time.sleep(3600.0)
        except BaseException:
            continue


@behaves(Outcome.TIMEOUT, DEADLY)
def loops_in_c() -> None:
    collections.deque(itertools.repeat(1), maxlen=0)
