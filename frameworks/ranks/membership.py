"""What an adapter writes for its ranks: the member that lives inside each rank's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import Arguments


class Member(Protocol):
    """Made once in each process as `Class(rank, count, folder, device, mode)`, where the process joins the group.

    `count` is how many ranks there are, `folder` the path of an empty folder that all of them share, such as for the
    file where they meet. A process that is several ranks is made with the first of them.
    """

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> Any:
        """This rank's trainer: the adapter's own with `update_share`, `gradients_share`, `bytes_held`, `collectives`.

        That of a process which is several ranks is a `SeveralRanks`.
        """

    def barrier(self) -> None:
        """Returns when all ranks are here; raises within `group_seconds` if they are not."""


class SeveralRanks(Protocol):
    """The trainer of a process that is several ranks."""

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        """The verb with what each of the process' ranks is given; an answer for each of them, in their order."""
