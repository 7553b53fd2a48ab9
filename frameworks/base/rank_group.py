"""Base of rank groups, whose methods call all ranks, and the trainer that presents a rank group as one run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import Ranks, Recipe, even_sizes
from frameworks.base.trainer import BaseTrainer, LossLedger, MicroBatch
from frameworks.contract import NOT_OFFERED, Capability, Gradients, Stop, Unsupported, Update

_LEDGER = "window.npy"
"""File of a saved run with the losses of its open window."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of one rank's method call."""

    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


def ranks_of(recipe: Recipe) -> Ranks:
    """The ranks of a recipe.

    Raises:
        ValueError: the recipe has no ranks.
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
    """Seconds within which a call ends if a rank fails. No rank waits here, so that this suffices on a busy machine."""

    @abstractmethod
    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method on every rank's trainer concurrently and returns the results.

        Raises:
            RankFailed: a rank died or did not answer in time.
            Exception: the exception of the first rank that raised.
        """

    def close(self) -> None:  # noqa: B027
        """Does nothing by default."""

    def all(self, verb: str, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Calls a method with the same arguments on every rank."""
        return self.ask(verb, [Arguments(arguments, named)] * self.count)

    def each(self, verb: str, shares: Sequence[Any]) -> tuple[Any, ...]:
        """Calls a method with one argument, different for each rank."""
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
        shares = zip(*map(_with_zeros, zip(*windows, strict=True)), strict=True)
        named = [
            {"unscale_calls": unscale_calls, "inject": own, "discard": discard} for own in inject or [None] * self.count
        ]
        return self.ask("apply_gradients", [Arguments(tuple(w), kw) for w, kw in zip(shares, named, strict=True)])

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        raise Unsupported.from_declaration(Capability.RANKS_LOST, NOT_OFFERED)

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
    """Arguments for each rank: its window, and the number of items of the windows of all ranks."""
    items = sum(batch.items for window in windows for batch in window)
    return [Arguments((window, items)) for window in windows]


def _with_zeros(fed: Sequence[Gradients]) -> tuple[Gradients, ...]:
    """Gradients of a micro-batch by rank, with zeros where a rank has none, since all ranks must reduce."""
    nothing = [all(value is None for value in own.values()) for own in fed]
    if not any(nothing):
        return tuple(fed)
    gradients = {name: value for own in fed for name, value in own.items() if value is not None}
    zeros = {name: np.zeros_like(value) for name, value in gradients.items()}
    return tuple(zeros if empty else own for own, empty in zip(fed, nothing, strict=True))


def split_across_ranks(batch: Batch, count: int) -> tuple[Batch, ...]:
    """Consecutive parts of a micro-batch, one for each rank, with the sizes of `even_sizes`."""
    return batch.split(*even_sizes(len(batch), count))


def window_across_ranks(window: Window, count: int) -> list[Window]:
    """The window of each rank: its part of every micro-batch."""
    parts = [split_across_ranks(batch, count) for batch in window]
    return [tuple(own[rank] for own in parts) for rank in range(count)]


class RankGroupTrainer(BaseTrainer):
    """One training run on several ranks, each of which gets a part of the data.

    State is read from rank 0, except random streams, which are "STREAM.RANK" for every rank.
    """

    def __init__(self, rank_group: BaseRankGroup) -> None:
        self.rank_group = rank_group
        self.ledger: LossLedger[MicroBatch] = LossLedger()

    def update(self, window: Window) -> Update:
        self.ledger.empty()
        windows = window_across_ranks(window, self.rank_group.count)
        updates = self.rank_group.update(windows)
        items = sum(batch.items for batch in window)
        for index, batch in enumerate(window):
            losses = [update.micro_losses[index] for update in updates]
            self._enter(losses, [own[index] for own in windows], batch, items)
        return self._whole(updates)

    def accumulate(self, batch: Batch, items: int) -> float:
        parts = split_across_ranks(batch, self.rank_group.count)
        return self._enter(self.rank_group.accumulate(parts, items), parts, batch, items)

    def _enter(self, losses: Sequence[float], parts: Sequence[Batch], batch: Batch, items: int) -> float:
        """Records the micro-batch made of the ranks' parts."""
        total = sum(loss * part.items for loss, part in zip(losses, parts, strict=True) if part.items)
        return self.ledger.add(MicroBatch(total, batch.items), items)

    def apply(self) -> Update:
        return self._whole(self.rank_group.apply())

    def _whole(self, updates: Sequence[Update]) -> Update:
        """The ranks' update as one update; its losses are over all items."""
        loss, losses = self.ledger.loss(), self.ledger.losses()
        self.ledger.empty()
        return replace(updates[0], loss=loss, micro_losses=losses)

    def gradients(self, window: Window) -> dict[str, Array]:
        return self.rank_group.gradients(window_across_ranks(window, self.rank_group.count))[0]

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        count = self.rank_group.count
        injected = None if inject is None else [inject] * count
        updates = self.rank_group.apply_gradients(
            [window] * count, unscale_calls=unscale_calls, inject=injected, discard=discard
        )
        self.ledger.empty()
        return self._whole(updates)

    def saved_bytes(self, batch: Batch) -> int:
        """Saved bytes of all ranks together, each with its part of the batch."""
        self.require(Capability.SAVED_BYTES)
        return sum(self.rank_group.each("saved_bytes", split_across_ranks(batch, self.rank_group.count)))

    def parameters(self) -> dict[str, Array]:
        return self._read("parameters")

    def master_parameters(self) -> dict[str, Array]:
        return self._read("master_parameters")

    def optimizer_state(self) -> dict[str, Array]:
        return self._read("optimizer_state")

    def buffers(self) -> dict[str, Array]:
        return self._read("buffers")

    def scaler_state(self) -> dict[str, Array]:
        return self._read("scaler_state")

    def scaler_settings(self) -> dict[str, float]:
        settings: dict[str, float] = self.rank_group.all("scaler_settings")[0]
        return settings

    def accumulator(self) -> dict[str, Array]:
        return self._read("accumulator")

    def random_state(self) -> dict[str, Array]:
        streams = self.rank_group.all("random_state")
        return {f"{name}.{rank}": state for rank, own in enumerate(streams) for name, state in own.items()}

    def _read(self, verb: str, *arguments: Any) -> dict[str, Array]:
        """Calls a method on every rank, since each holds a part of the result, and returns rank 0's result."""
        answer: dict[str, Array] = self.rank_group.all(verb, *arguments)[0]
        return answer

    def predict(self, inputs: Array) -> dict[str, Array]:
        return self._read("predict", inputs)

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        return self._read("predict_averaged", inputs)

    def segment_calls(self) -> tuple[int, ...]:
        calls: tuple[int, ...] = self.rank_group.all("segment_calls")[0]
        return calls

    def offloaded_bytes(self) -> dict[str, int]:
        """Offloaded bytes of all ranks."""
        total: Counter[str] = Counter()
        for own in self.rank_group.all("offloaded_bytes"):
            total.update(own)
        return dict(total)

    def save(self, path: Path) -> None:
        self.rank_group.save(path)
        np.save(path / _LEDGER, [[self.ledger.items, 0.0], *([m.items, m.total] for m in self.ledger.micro_batches)])

    def restore(self, path: Path) -> None:
        micro_batches, items = _read_ledger(path / _LEDGER)
        self.rank_group.restore(path)
        self.ledger.replace(micro_batches, items)


def _read_ledger(file: Path) -> tuple[list[MicroBatch], int]:
    """The saved micro-batches of the open window, and its number of items.

    Raises:
        ValueError: the file is missing or incomplete.
    """
    try:
        table = np.load(file)
        (items, _), *losses = table.tolist()
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    if table.shape[1:] != (2,) or not all(math.isfinite(count) for count, _ in [(items, 0), *losses]):
        raise ValueError(f"{file} does not hold the losses of a window")
    return [MicroBatch(total, int(count)) for count, total in losses], int(items)
