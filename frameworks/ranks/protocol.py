"""Protocol for adapters: the member in each rank's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import Arguments


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
