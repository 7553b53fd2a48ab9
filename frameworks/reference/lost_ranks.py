"""What simulated ranks do about one of them that stops."""

from __future__ import annotations

from collections.abc import Sequence

from fixtures.model import Window
from frameworks.base import BaseCompany
from frameworks.contract import RankFailed, Stop, Update
from frameworks.reference.decisions import Arrays


class LosesRanks(BaseCompany):
    """Ranks that meet in every verb, and of which one may be missing from some moment on.

    Attributes:
        missing: the ranks that have stopped.
    """

    missing: frozenset[int] = frozenset()

    def lost(self, rank: int) -> None:
        """What ranks do about one that does not come: their call ends with an error.

        Raises:
            RankFailed: the rank is missing.
        """
        raise RankFailed(f"rank {rank} is missing", (rank,))

    def meet(self) -> None:
        """Every rank has come here, or the others notice which one has not."""
        for rank in sorted(self.missing):
            self.lost(rank)

    def brought(self, gradients: Sequence[Arrays]) -> list[Arrays]:
        """What each rank brings to a reduction: nothing from one that is missing."""
        self.meet()
        return [{} if rank in self.missing else own for rank, own in enumerate(gradients)]

    def lose(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        self.missing |= {rank}
        return self.update(windows)
