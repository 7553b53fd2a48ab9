"""`Company`: the ranks of one training run, each of which answers for itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract.values import Gradients, Update

Stop = Literal["exits", "raises", "one call fewer"]
"""How a rank stops: its process ends, it raises, or it returns at once while the others wait for it."""


class RankFailed(Exception):
    """A rank died or did not answer in time; the company is over. The message says which and how.

    Attributes:
        ranks: those that failed, as far as is known.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class Company(Protocol):
    """The ranks of one run. Every call reaches all of them at once; answers come in the order of ranks.

    What a verb does on each rank is what `Trainer` says of it. Readings are gathered: each rank answers with whole
    arrays, as it sees them, whatever it holds of them.

    Raises:
        RankFailed: from any verb, where a rank died, or did not answer in time.

    Attributes:
        limit_s: seconds within which a call has ended on all ranks where one of them stops.
    """

    count: int
    limit_s: float

    def update(self, windows: Sequence[Window]) -> tuple[Update, ...]:
        """One update from a window of each rank, all of them equally long; a micro-batch may have no samples.

        The losses are of each rank's own items; the rest is the company's, as each has it.
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

    def feed(
        self,
        windows: Sequence[Sequence[Gradients]],
        *,
        unscale_calls: int | None = None,
        poison: Sequence[Gradients | None] | None = None,
        abandon: bool = False,
    ) -> tuple[Update, ...]:
        """One update attempt from given unscaled gradients of each rank's micro-batches, all of equally many items.

        Their mean over micro-batches and ranks is the window's gradient.

        Args:
            unscale_calls: how often each rank unscales by hand before the step; None leaves it to the framework.
            poison: for each rank what is added, after unscaling by hand once, to the part of the reduced gradients
                that it holds; an array has the parameter's whole shape.
            abandon: unscale by hand once and leave the step out.
        """

    def lose(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        """`update`, in which one rank stops before it does anything; the company is over then.

        A rank that is one process with others takes these with it.

        Returns:
            What the ranks answered, None from one that made a call fewer, where nobody noticed.
        Raises:
            RankFailed: the rank's process ended.
            Exception: what the first rank to raise has raised: the one that stops, or one that waited for it.
            Unsupported: RANKS_LOST, where no rank can be made to stop.
        """

    def states(self) -> tuple[dict[str, Array], ...]:
        """`Trainer.state` of each rank."""

    def bytes_held(self) -> tuple[dict[str, int], ...]:
        """Bytes that each rank holds between updates: "parameter", "gradient", "optimizer" and "buffer".

        "optimizer" is moments and masters without counters; "gradient" what the last window's reduced gradients take.
        """

    def collectives(self) -> tuple[dict[str, int], ...]:
        """How many tensors each rank has brought to a collective operation since the last call, by kind.

        Kinds: "gradients" for each parameter whose gradient was reduced, once a reduction.

        Raises:
            Unsupported: RANKS_COLLECTIVES, where the framework does not show it.
        """

    def save(self, path: Path) -> None:
        """Writes the whole run below the folder `path`."""

    def restore(self, path: Path) -> None:
        """Goes back to what `save` wrote, with as many ranks or others; ValueError on every rank if it is not whole."""

    def close(self) -> None:
        """Ends the run on every rank; nothing of it may be asked afterwards."""
