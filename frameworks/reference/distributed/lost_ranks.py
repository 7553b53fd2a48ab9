"""Failure of simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence

from fixtures.model import Window
from frameworks.base import BaseRankGroup
from frameworks.contract import RankFailed, Stop, Update
from frameworks.reference.training.decisions import Arrays


class LosesRanks(BaseRankGroup):
    """Ranks that synchronise in every call, one of which may be missing from some moment on.

    Attributes:
        missing: the ranks that have stopped.
    """

    missing: frozenset[int] = frozenset()

    def lost(self, rank: int) -> None:
        """Reaction to a missing rank: the call ends with an error.

        Raises:
            RankFailed: the rank is missing.
        """
        raise RankFailed(f"rank {rank} is missing", (rank,))

    def meet(self) -> None:
        """Synchronises all ranks, or reports the missing one."""
        for rank in sorted(self.missing):
            self.lost(rank)

    def brought(self, gradients: Sequence[Arrays]) -> list[Arrays]:
        """Each rank's contribution to a reduction: none from a missing one."""
        self.meet()
        return [{} if rank in self.missing else own for rank, own in enumerate(gradients)]

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        self.missing |= {rank}
        return self.update(windows)
