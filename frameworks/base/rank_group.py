"""Base of rank groups: methods that call all ranks, and the view as one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import NOT_OFFERED, Capability, Gradients, Stop, Unsupported, Update


@dataclass(frozen=True)
class Arguments:
    """Arguments of one rank's method call."""

    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


def ranks_of(recipe: Recipe) -> Ranks:
    """The ranks of a recipe.

    Raises:
        ValueError: it names none.
    """
    if recipe.ranks is None:
        raise ValueError("recipe.ranks is required, e.g. Recipe(ranks=Ranks(2))")
    return recipe.ranks


class BaseRankGroup(ABC):
    """The methods of `RankGroup`, each of which calls every rank's trainer.

    A rank's trainer is the adapter's own, with two more methods: `resident_bytes()` and `collectives()`.
    """

    count: int
    limit_s = 10.0
    """Without waiting ranks a stop is noticed at once, even on a busy machine."""

    @abstractmethod
    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method on every rank's trainer concurrently and returns the results.

        Raises:
            RankFailed: a rank died or did not answer in time.
            Exception: the exception of the first rank that raised.
        """

    def close(self) -> None:  # noqa: B027
        """Nothing to end by default."""

    def all(self, verb: str, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """A method call with the same arguments on every rank."""
        return self.ask(verb, [Arguments(arguments, named)] * self.count)

    def each(self, verb: str, shares: Sequence[Any]) -> tuple[Any, ...]:
        """A method call with one argument by rank."""
        return self.ask(verb, [Arguments((share,)) for share in shares])

    def update(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        return self.ask("update_share", with_items(windows))

    def accumulate(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        return self.ask("accumulate", [Arguments((batch, items)) for batch in batches])

    def apply(self) -> tuple[Update, ...]:
        return self.all("apply")

    def gradients(self, windows: Sequence[Window]) -> tuple[dict[str, Array], ...]:
        return self.ask("gradients_share", with_items(windows))

    def apply_gradients(
        self,
        windows: Sequence[Sequence[Gradients]],
        *,
        unscale_calls: int | None = None,
        inject: Sequence[Gradients | None] | None = None,
        discard: bool = False,
    ) -> tuple[Update, ...]:
        given = zip(*map(_with_zeros, zip(*windows, strict=True)), strict=True)
        named = [
            {"unscale_calls": unscale_calls, "inject": own, "discard": discard} for own in inject or [None] * self.count
        ]
        return self.ask("apply_gradients", [Arguments(tuple(w), kw) for w, kw in zip(given, named, strict=True)])

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        raise Unsupported.declared(Capability.RANKS_LOST, NOT_OFFERED)

    def states(self) -> tuple[dict[str, Array], ...]:
        return self.all("state")

    def resident_bytes(self) -> tuple[dict[str, int], ...]:
        return self.all("resident_bytes")

    def collectives(self) -> tuple[dict[str, int], ...]:
        return self.all("collectives")

    def save(self, path: Path) -> None:
        self.all("save", path)

    def restore(self, path: Path) -> None:
        self.all("restore", path)


def with_items(windows: Sequence[Window]) -> list[Arguments]:
    """Each rank's window, and the number of items on all ranks."""
    items = sum(batch.items for window in windows for batch in window)
    return [Arguments((window, items)) for window in windows]


def _with_zeros(fed: Sequence[Gradients]) -> tuple[Gradients, ...]:
    """Gradients by rank for a micro-batch; zeros where a rank has none, since all ranks must reduce."""
    nothing = [all(value is None for value in own.values()) for own in fed]
    if not any(nothing):
        return tuple(fed)
    given = {name: value for own in fed for name, value in own.items() if value is not None}
    zeros = {name: np.zeros_like(value) for name, value in given.items()}
    return tuple(zeros if empty else own for own, empty in zip(fed, nothing, strict=True))
