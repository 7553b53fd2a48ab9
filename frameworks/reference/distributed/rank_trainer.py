"""One rank of a simulated run, and the number of ranks in a save."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Conventions
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.training.trainer import ReferenceTrainer

Kinds = dict[str, int]
"""Counts or bytes by kind."""

COUNT = "company.json"
"""The file with the number of ranks that wrote a save."""


class RankCollectives(Protocol):
    """Collective operations of a rank."""

    model: Model
    ops: Operations
    counted: list[int]

    def norm(self, rank: int, names: Sequence[str]) -> float: ...

    def schedule_steps(self) -> int: ...

    def holds(self, rank: int) -> Kinds: ...


class RankTrainer(ReferenceTrainer):
    """One rank's run: a whole copy of the state; the level defines which part the rank holds.

    Attributes:
        agreed: the optimizers whose update all ranks skip, while an update is applied.
    """

    agreed: frozenset[int] | None = None

    def __init__(
        self,
        rank_group: RankCollectives,
        rank: int,
        recipe: Recipe,
        conventions: Conventions,
        weights: Mapping[str, Array],
    ) -> None:
        super().__init__(rank_group.model, recipe, conventions, rank_group.ops, weights)
        self.rank_group = rank_group
        self.rank = rank

    def judge(self) -> frozenset[int]:
        return super().judge() if self.agreed is None else self.agreed

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        if self.agreed is None:
            return super().gradient_norm(gradients)
        return self.rank_group.norm(self.rank, list(gradients))

    def advance_schedule(self) -> None:
        self.schedule += self.rank_group.schedule_steps()

    def _identity(self) -> str:
        return (
            f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.replace(ranks=None, offload=None)}"
        )

    def own_finding(self) -> frozenset[int]:
        """The optimizers whose gradients are not finite as this rank alone sees it."""
        if self.window.latched is not None:
            return self.window.latched
        return super().judge() | self.window.scaled_overflow

    def resident_bytes(self) -> Kinds:
        return self.rank_group.holds(self.rank)

    def collectives(self) -> Kinds:
        counted, self.rank_group.counted[self.rank] = self.rank_group.counted[self.rank], 0
        return {"gradients": counted}


@cache
def rank_of(trainer_class: type[ReferenceTrainer]) -> type[RankTrainer]:
    """A rank whose run is of this class, such as a fault."""
    return type(trainer_class.__name__, (RankTrainer, trainer_class), {"__module__": trainer_class.__module__})


def saved_count(file: Path) -> int:
    """The number of ranks that wrote a save.

    Raises:
        ValueError: the file is missing or not whole.
    """
    try:
        count = json.loads(file.read_text("utf-8"))["ranks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{file} names no count of ranks")
    return count
