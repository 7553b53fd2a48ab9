"""Faults of what ranks hold and save: shards, masters, formats, other numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from tools.faults import fault


@fault("https://github.com/deepspeedai/DeepSpeed/issues/7837", "sharding.holds-its-part")
class GradientsStayWhole(ReferenceRankGroup):
    """Every level but the full one leaves gradients whole."""

    def sharded(self, kind: str) -> bool:
        return super().sharded(kind) and (kind != "gradient" or self.ranks.level == "full")


@fault("https://github.com/pytorch/pytorch/issues/160279", "sharding.holds-its-part")
class LastRowsAreHeldTwice(ReferenceRankGroup):
    """Shards are of equal length: where the rows do not divide, the last ranks hold some that others hold too."""

    def shard(self, value: Array, rank: int) -> Array:
        rows = np.atleast_1d(value)
        length = -(-len(rows) // self.ranks.shards)
        place = min((rank % self.ranks.shards) * length, max(len(rows) - length, 0))
        return rows[place : place + length]

    def gather(self, shards: Sequence[Array], like: Array) -> Array:
        rows = np.concatenate(list(shards))
        return np.resize(rows, like.shape) if rows.size != like.size else rows.reshape(like.shape)


@fault("https://github.com/PaddlePaddle/Paddle/pull/59611", "sharding.masters-stay-wide")
class ShardedMastersAreNarrow(ReferenceRankGroup):
    """Where the optimizer's state is sharded, masters are stored in the model's format between updates."""

    def _gather_state(self) -> None:
        if self.sharded("optimizer"):
            for trainer in self.trainers:
                rounded = trainer.rounding.round
                trainer.masters = {n: rounded(v, trainer.formats[n]) for n, v in trainer.masters.items()}
        super()._gather_state()


@fault("https://github.com/PaddlePaddle/Paddle/pull/49767", "sharding.replicas-equal")
class AverageIsNotGathered(ReferenceRankGroup):
    """Ranks past the first see the average as it was before the last update."""

    def _gather_state(self) -> None:
        super()._gather_state()
        for trainer in self.trainers[1:]:
            trainer.averages = {name: value * (1.0 + 2.0**-20) for name, value in trainer.averages.items()}


@fault("https://github.com/huggingface/accelerate/pull/4071", "sharding.resumes-in-another-size")
class AnotherSizeStartsTheScheduleAnew(ReferenceRankGroup):
    """Where the number of ranks changed, a load leaves the schedule at its beginning."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.count != 2:
            for trainer in self.trainers:
                trainer.schedule = 0


@fault("https://github.com/instructlab/training/issues/414", "sharding.resumes-in-another-size")
class MomentumStaysWithItsRank(ReferenceRankGroup):
    """Where the number of ranks changed, the optimizer's state of later shards is not brought along."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.count != 2:
            for trainer in self.trainers:
                for values in trainer.slots.values():
                    for name, value in values.items():
                        rows = np.atleast_1d(value).copy()
                        rows[len(rows) // 2 :] = 0.0
                        values[name] = rows.reshape(value.shape)


@fault("https://github.com/huggingface/transformers/pull/46628", "sharding.damaged-shard")
class DamagedRankGoesOnAsItWas(ReferenceRankGroup):
    """A rank whose file cannot be read keeps what it has, and the others load theirs."""

    def restore(self, path: Path) -> None:
        for trainer in self.trainers:
            with suppress(ValueError):
                trainer.restore(path / f"rank-{trainer.rank}")


@fault("https://github.com/huggingface/transformers/pull/40691", "sharding.damaged-shard")
class RanksBeforeTheDamageLoad(ReferenceRankGroup):
    """A damaged file is refused after the ranks before it have loaded theirs."""

    def restore(self, path: Path) -> None:
        for trainer in self.trainers:
            trainer.restore(path / f"rank-{trainer.rank}")
