"""Protocol for adapters: the member in each rank's process, and its timeouts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import Arguments

GROUP_SECONDS = "CONFORMANCE_GROUP_S"
"""Environment variable with the timeout of collective operations."""


@dataclass(frozen=True)
class Limits:
    """Seconds, each longer than those before it: the framework's own timeout is shorter than that of a command.

    Attributes:
        group_s: timeout of a collective operation, after which the framework raises.
        grace_s: additional time for the others after a rank has raised.
        answer_s: timeout of a command.
        start_s: timeout for importing the framework and joining the group.
    """

    group_s: float = 20.0
    grace_s: float = 3.0
    answer_s: float = 60.0
    start_s: float = 120.0


LIMITS = Limits()


def group_seconds() -> float:
    """In a rank, the timeout for its framework's collective operations."""
    return float(os.environ.get(GROUP_SECONDS, LIMITS.group_s))


class RankWorker(Protocol):
    """Created once in each process as `Class(rank, count, folder, device, mode)`, which joins the group.

    `count` is the number of ranks, `folder` the path of an empty folder that all ranks share, for example for a
    rendezvous file. A process with several ranks gets the first of them.
    """

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> Any:
        """The adapter's own trainer, with `update_share`, `gradients_share`, `resident_bytes` and `collectives`.

        For a process with several ranks, a `SeveralRanks`.
        """

    def barrier(self) -> None:
        """Waits for all ranks; raises after `group_seconds`."""


class SeveralRanks(Protocol):
    """The trainer of a process with several ranks."""

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method with each rank's arguments; returns one result for each rank, in order."""
