"""Faults of what ranks do about one of them that stops, of what the next ones find, and of who can reach them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import ClassVar

from fixtures.arrays import Array
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/42107", "sharding.dead-rank")
class GoesOnWithoutTheRank(ReferenceRankGroup):
    """The others go on without a rank that has stopped, as if its gradients were zero."""

    def lost(self, rank: int) -> None:
        """Nobody notices."""


@fault("https://github.com/pytorch/pytorch/issues/189245", "sharding.dead-rank")
class NextRanksFindWhatWasLeft(ReferenceRankGroup):
    """What ranks had when one of them stopped stays where the next ranks of the model start."""

    _left: ClassVar[dict[str, Mapping[str, Array]]] = {}

    def lost(self, rank: int) -> None:
        self._left[self.model.name] = {name: value.copy() for name, value in self.first.masters.items()}
        super().lost(rank)

    def starting_weights(self, rank: int, given: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._left.get(self.model.name, given)


@fault("https://github.com/pytorch/pytorch/issues/173909", "sharding.loopback")
class RanksMeetOnEveryInterface(ReferenceRankGroup):
    """The server where ranks meet listens on every address."""

    def starting_weights(self, rank: int, given: Mapping[str, Array]) -> Mapping[str, Array]:
        if rank == 0:
            self._store = socket.create_server(("", 0))
        return super().starting_weights(rank, given)
