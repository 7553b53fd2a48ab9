"""`RankGroup`: the rank group of one training run, with one result for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract.values import Gradients, Update

Stop = Literal["exits", "raises", "one call fewer"]
"""How a rank fails: its process exits, it raises, or it skips a call for which the others wait."""


class RankFailed(Exception):
    """A rank died or did not answer in time, and the rank group has terminated. The message says which and how.

    Attributes:
        ranks: those that failed, as far as is known.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankGroup(Protocol):
    """The rank group of one run. Every call goes to all ranks concurrently; results are in rank order.

    Each method does on each rank what the same method of `Trainer` does. State is gathered: each rank returns whole
    arrays, whatever part it holds.

    Raises:
        RankFailed: from any method, if a rank died or did not answer in time.

    Attributes:
        limit_s: seconds within which a call ends on all ranks if one of them stops.
    """

    count: int
    limit_s: float

    def update(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        """One update from a window of each rank, all of them equally long; a micro-batch may have no samples.

        Losses are over each rank's own items; the other fields are those of the whole update.
        """

    def accumulate(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        """Forward and backward of a micro-batch of each rank, of a window that holds `items` items on all of them.

        Returns:
            Unscaled mean loss of each rank's own items; NaN where it has none.
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
            unscale_calls: how often each rank unscales by hand before the step; None leaves it to the framework.
            inject: for each rank what is added, after unscaling by hand once, to the part of the reduced gradients
                that it holds; an array has the parameter's whole shape.
            discard: unscale by hand once and leave the step out.
        """

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        """`update`, in which one rank stops at the start; the rank group has then terminated.

        Ranks in the same process stop too.

        Returns:
            The ranks' results; None from a rank that skipped the call, if nobody noticed.
        Raises:
            RankFailed: the rank's process ended.
            Exception: the exception of the first rank that raised: the one that stops, or one that waited for it.
            Unsupported: RANKS_LOST, if no rank can be stopped.
        """

    def states(self) -> tuple[dict[str, Array], ...]:
        """`Trainer.state` of each rank."""

    def resident_bytes(self) -> tuple[dict[str, int], ...]:
        """Bytes that each rank holds between updates: "parameter", "gradient", "optimizer" and "buffer".

        "optimizer" is moments and masters without counters; "gradient" the last window's reduced gradients.
        """

    def collectives(self) -> tuple[dict[str, int], ...]:
        """Number of tensors in each rank's collective operations since the last call, by kind.

        Kinds: "gradients" for each parameter whose gradient was reduced, once a reduction.

        Raises:
            Unsupported: RANKS_COLLECTIVES, where the framework does not show it.
        """

    def save(self, path: Path) -> None:
        """Writes the whole run below the folder `path`."""

    def restore(self, path: Path) -> None:
        """Restores what `save` wrote, with as many ranks or others; ValueError on every rank if it is not whole."""

    def close(self) -> None:
        """Ends the run on every rank; it cannot be used afterwards."""
