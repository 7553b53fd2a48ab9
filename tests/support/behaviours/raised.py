"""Exceptions that are hard to show, to send or to catch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from frameworks.contract import Capability, Unsupported
from results.record.outcomes import Outcome
from tests.support.behaviours.registry import BEHAVIOURS, BIG, Behaviour, behaves


class HostileError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


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
