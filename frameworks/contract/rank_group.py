"""`RankGroup`: the rank group of one training run, with one result for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract.values import Gradients, Update

Stop = Literal["exits", "raises", "one call fewer"]
"""Failure of a rank: its process exits, it raises, or it skips a call for which the others wait."""


class RankFailed(Exception):
    """A rank died or did not answer in time, and the rank group has ended. The message names the rank and the failure.

    Attributes:
        ranks: the ranks that are known to have failed.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankGroup(Protocol):
    """The rank group of one run. Every call goes to all ranks concurrently; results are in rank order.

    Each method calls the same method of `Trainer` on each rank. State is gathered: each rank returns whole arrays, also
    of state of which it holds a part.

    Raises:
        RankFailed: from any method, if a rank died or did not answer in time.

    Attributes:
        limit_s: seconds within which a call ends on all ranks if one of them stops.
    """

    count: int
    limit_s: float

    def update(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        """One update from a window of each rank. All windows are equally long; a micro-batch may have no samples.

        Losses are over each rank's own items; the other fields are those of the whole update.
        """

    def accumulate(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        """Forward and backward of one micro-batch of each rank; the window has `items` items on all ranks together.

        Returns:
            Unscaled mean loss of each rank's own items; NaN for a rank without items.
        """

    def apply(self) -> tuple[Update, ...]:
        """Ends the window."""

    def gradients(self, windows: Sequence[Window]) -> tuple[dict[str, Array], ...]:
        """Unscaled, unclipped gradients of the windows together, as each rank's optimizer would take them."""

    def apply_gradients(
        self,
        windows: Sequence[Sequence[Gradients]],
        *,
        unscale_calls: int | None = None,
        inject: Sequence[Gradients | None] | None = None,
        discard: bool = False,
    ) -> tuple[Update, ...]:
        """One update attempt from given unscaled gradients of each rank's micro-batches, all of equally many items.

        Their mean over micro-batches and ranks is the window's gradient.

        Args:
            unscale_calls: number of manual unscale calls of each rank before the step; None leaves it to the framework.
            inject: for each rank the values to add, after one manual unscale, to the part of the reduced gradients
                that it holds; an array has the parameter's whole shape.
            discard: unscale manually once and leave out the step.
        """

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        """`update`, in which one rank fails at the start; the rank group has ended afterwards.

        Ranks in the same process fail too.

        Returns:
            The ranks' results if no rank noticed the failure; None from a rank that skipped the call.
        Raises:
            RankFailed: the rank's process ended.
            Exception: the exception of the first rank that raised: the failed rank, or one that waited for it.
            Unsupported: RANKS_LOST, if no rank can be stopped.
        """

    def states(self) -> tuple[dict[str, Array], ...]:
        """`Trainer.state` of each rank."""

    def resident_bytes(self) -> tuple[dict[str, int], ...]:
        """Bytes that each rank holds between updates: "parameter", "gradient", "optimizer" and "buffer".

        "optimizer" includes moments and masters, not counters; "gradient" is the last window's reduced gradients.
        """

    def collectives(self) -> tuple[dict[str, int], ...]:
        """Number of tensors in each rank's collective operations since the last call, by kind.

        Kinds: "gradients", which counts each parameter once for each reduction of its gradient.

        Raises:
            Unsupported: RANKS_COLLECTIVES, if the framework does not report it.
        """

    def save(self, path: Path) -> None:
        """Writes the whole run below the folder `path`."""

    def restore(self, path: Path) -> None:
        """Restores a save, also of another number of ranks; ValueError on every rank if the files are incomplete."""

    def close(self) -> None:
        """Ends the run on every rank; it cannot be used afterwards."""
