"""Messages between a worker group and its ranks, their timeouts, and `RankWorker`, the protocol for adapters."""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Unsupported


@dataclass(frozen=True)
class Opening:
    """Configuration of a rank process.

    Attributes:
        kind: the `RankWorker` class as package.module:Class.
        rank: the process' first rank.
        ranks: number of ranks in the process.
        count: number of ranks in all processes.
        search: the parent's module search path.
    """

    kind: str
    rank: int
    ranks: int
    count: int
    folder: Path
    device: str
    mode: str
    search: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A call of a method of the process' `CommandHandler`.

    Attributes:
        number: number of the command in its worker group.
        dropped: numbers of dropped runs.
        call: the method's name and its arguments, pickled.
    """

    number: int
    dropped: tuple[int, ...]
    call: bytes


@dataclass(frozen=True)
class Answer:
    """The answer to a command.

    Attributes:
        number: number of the command.
        body: the method's pickled result, or its exception as pickled by `pickle_error`.
    """

    number: int
    raised: bool
    body: bytes

    def value(self) -> Any:
        """The method's result."""
        return pickle.loads(self.body)

    def error(self) -> Exception:
        """The method's exception."""
        text, notes, body = pickle.loads(self.body)
        try:
            error: Exception = pickle.loads(body)
        except Exception:  # an exception's own unpickling may raise anything here
            error = RuntimeError(text)
        error.__notes__ = notes
        return error


def pickle_error(error: Exception, note: str) -> bytes:
    """The pickled exception, of its own type if that can be pickled, else a RuntimeError that names the type.

    An `Unsupported` keeps its attempt if that can be pickled.
    """
    forms = [error, *([Unsupported(error.capability, error.reason)] if isinstance(error, Unsupported) else [])]
    line, notes = _error_line(error), [*getattr(error, "__notes__", []), note]
    for form in forms:
        try:
            body = pickle.dumps(form)
            again = pickle.loads(body)
        except Exception:  # an exception's own pickling may raise anything
            continue
        if isinstance(error, type(again)) and str(again) == str(error):
            return pickle.dumps((line, notes, body))
    return pickle.dumps((line, notes, pickle.dumps(RuntimeError(line))))


def _error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


GROUP_SECONDS = "CONFORMANCE_GROUP_S"
"""Environment variable with the timeout of collective operations, in seconds."""


@dataclass(frozen=True)
class Limits:
    """Timeouts in seconds. `group_s` is shorter than `answer_s`: the framework raises before a command times out.

    Attributes:
        group_s: timeout of a collective operation, after which the framework raises.
        grace_s: additional time for the other ranks after a rank has raised.
        answer_s: timeout of a command.
        start_s: timeout for importing the framework and joining the group.
    """

    group_s: float = 20.0
    grace_s: float = 3.0
    answer_s: float = 60.0
    start_s: float = 120.0


LIMITS = Limits()


def group_seconds() -> float:
    """The timeout of the framework's collective operations in a rank process, in seconds."""
    return float(os.environ.get(GROUP_SECONDS, LIMITS.group_s))


class RankWorker(Protocol):
    """Created once in each process as `Class(rank, count, folder, device, mode)`, which joins the group.

    `count` is the number of ranks, `folder` the path of an empty folder that all ranks share, for example for a
    rendezvous file. A process with several ranks gets the first of them.
    """

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> Any:
        """The adapter's own trainer, with `update_share`, `gradients_share`, `resident_bytes` and `collectives`.

        That of a process with several ranks has `ask(verb, arguments)`, which calls a method with each rank's
        `Arguments` and returns one result for each rank, in order.
        """

    def barrier(self) -> None:
        """Waits for all ranks; raises after `group_seconds`."""
