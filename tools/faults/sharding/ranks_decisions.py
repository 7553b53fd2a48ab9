"""Faults of what ranks decide: who skips, what scale follows, which norm clips."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frameworks.reference.distributed.ranks import ReferenceRankGroup
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/99174", "sharding.one-decision")
class FirstRankDecides(ReferenceRankGroup):
    """What rank 0 finds in its own shard is what all do."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return findings[0]


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "sharding.one-decision")
class AllMustOverflow(ReferenceRankGroup):
    """An update is skipped only where every rank finds an overflow."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return frozenset(findings[0]).intersection(*findings)


@fault("https://github.com/pytorch/pytorch/pull/88955", "sharding.global-clip")
class NormCountsReplicas(ReferenceRankGroup):
    """The squares of every rank's copy are added up, so that the norm grows with the replicas."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        return super().norm(rank, names) * float(np.sqrt(self.count / self.ranks.shards))


@fault("https://github.com/pytorch/pytorch/issues/170862", "sharding.global-clip")
class NormOfOneShard(ReferenceRankGroup):
    """Each rank clips by the norm of the shard that it holds."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        gradients: Arrays = {name: self.windows[rank][name] for name in names}
        if self.sharded("gradient"):
            gradients = {name: self.shard(value, rank) for name, value in gradients.items()}
        return ReferenceTrainer.gradient_norm(self.first, gradients)


@fault("https://github.com/tracel-ai/burn/issues/5695", "sharding.schedule-counts-updates")
class ScheduleCountsRanks(ReferenceRankGroup):
    """An update moves the schedule by as many steps as there are ranks."""

    def schedule_steps(self) -> int:
        return self.count
