"""What a framework may do that is no computation: each behaviour with the outcome of the test that it happens in."""

from __future__ import annotations

import builtins
import collections
import ctypes
import decimal
import gc
import itertools
import locale
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from frameworks.contract import Capability, Unsupported
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


class HostileError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


class Unlike:
    """A value that can neither be compared nor shown."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("never equal")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


# ---------------------------------------------------------------- exceptions


def raises(error: BaseException | type[BaseException]) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


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
BEHAVIOURS.update({name: Behaviour(raises(error), Outcome.ERROR) for name, error in RAISED.items()})


@behaves(Outcome.ERROR)
def deep_recursion() -> object:
    return deep_recursion()


@behaves(Outcome.ERROR)
def refusal_whose_attempt_exits() -> object:
    raise Unsupported(Capability.CLIP, "no clipping", attempt=lambda: sys.exit(0))


# ---------------------------------------------------------------- what it returns


def returns(value: Any) -> Callable[[], object]:
    return lambda: value


RETURNED: dict[str, tuple[Any, Outcome]] = {
    "not_a_number": (float("nan"), Outcome.FAIL),
    "nothing": (None, Outcome.FAIL),
    "a_generator": ((n for n in ()), Outcome.FAIL),
    "array_of_objects": (np.array([Unlike(), None], dtype=object), Outcome.ERROR),
    "another_shape": (np.ones((3, 0, 2)), Outcome.FAIL),
    "value_that_cannot_be_compared": (Unlike(), Outcome.ERROR),
}
BEHAVIOURS.update({name: Behaviour(returns(value), outcome) for name, (value, outcome) in RETURNED.items()})


# ---------------------------------------------------------------- what it leaves behind


@behaves(Outcome.ERROR)
def low_recursion_limit() -> object:
    for limit in range(20, 2000):
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:
            continue
        break
    return 1.0


@behaves(Outcome.PASS)
def fork_that_goes_on() -> object:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return 1.0


@behaves(Outcome.PASS)
def fork_that_raises() -> object:
    child = os.fork()
    if not child:
        raise ValueError("in the child")
    os.waitpid(child, 0)
    return 1.0


@behaves(Outcome.PASS)
def another_folder() -> object:
    os.makedirs("gone", exist_ok=True)
    os.chdir("gone")
    os.rmdir(os.getcwd())
    return 1.0


@behaves(Outcome.PASS)
def closed_streams() -> object:
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.close()
        stream.close()
    return 1.0


@behaves(Outcome.PASS)
def closed_descriptors() -> object:
    numbers = {1, 2, sys.stdout.fileno(), sys.stderr.fileno()}
    for number in numbers:
        os.close(number)
    return 1.0


@behaves(Outcome.PASS)
def replaced_streams() -> object:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return 1.0


@behaves(Outcome.PASS)
def handlers_replaced() -> object:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(7))
    return 1.0


@behaves(Outcome.PASS)
def alarm_left_ticking() -> object:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    return 1.0


@behaves(Outcome.PASS)
def threads_left_running() -> object:
    threading.Thread(target=time.sleep, args=(3600.0,), daemon=False).start()
    return 1.0


@behaves(Outcome.ERROR)
def builtins_replaced() -> object:
    builtins.open = builtins.print = builtins.len = lambda *_, **__: sys.exit(3)  # type: ignore[assignment]
    return 1.0


@behaves(Outcome.PASS)
def warnings_are_errors() -> object:
    warnings.simplefilter("error")
    warnings.showwarning = None  # type: ignore[assignment]
    return 1.0


@behaves(Outcome.PASS)
def variables_changed() -> object:
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "77"
    return 1.0


@behaves(Outcome.PASS)
def numbers_changed() -> object:
    decimal.getcontext().prec = 2
    np.seterr(all="raise")
    locale.setlocale(locale.LC_ALL, "C")
    return 1.0


@behaves(Outcome.PASS)
def limits_lowered() -> object:
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))
    return 1.0


@behaves(Outcome.ERROR)
def all_memory() -> object:
    resource.setrlimit(resource.RLIMIT_AS, (2**33, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return bytearray(2**40)


@behaves(Outcome.PASS)
def traced_and_uncollected() -> object:
    gc.disable()
    threading.excepthook = sys.excepthook = lambda *_: sys.exit(4)
    sys.setprofile(lambda *_: None)
    return 1.0


@behaves(Outcome.PASS)
def modules_gone() -> object:
    sys.modules["json"] = None  # type: ignore[assignment]
    sys.path.clear()
    return 1.0


@behaves(Outcome.PASS)
def no_permissions() -> object:
    os.umask(0o777)
    return 1.0


@behaves(Outcome.PASS)
def prints_100_megabytes() -> object:
    for _ in range(100):
        sys.stdout.write("x" * (BIG // 100))
    return 1.0


# ---------------------------------------------------------------- what takes the process with it


@behaves(Outcome.CRASH, DEADLY)
def ends_the_process() -> object:
    os._exit(0)


@behaves(Outcome.CRASH, DEADLY)
def aborts() -> object:
    os.abort()


@behaves(Outcome.CRASH, DEADLY)
def is_killed() -> object:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@behaves(Outcome.CRASH, DEADLY)
def reads_address_zero() -> object:
    return ctypes.string_at(0)


@behaves(Outcome.CRASH, DEADLY)
def closes_every_file() -> object:
    os.closerange(3, 1024)
    os._exit(0)


@behaves(Outcome.TIMEOUT, DEADLY)
def sleeps() -> object:
    time.sleep(3600.0)
    return 1.0


@behaves(Outcome.TIMEOUT, DEADLY)
def swallows_every_exception() -> object:
    while True:
        try:
            time.sleep(3600.0)
        except BaseException:
            continue


@behaves(Outcome.TIMEOUT, DEADLY)
def loops_in_c() -> object:
    collections.deque(itertools.repeat(1), maxlen=0)
    return 1.0
