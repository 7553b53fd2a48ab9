"""Faults of meshes: several replicas of what several ranks share, and parameters too small to be shared by all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/88955", "sharding.global-clip")
class SmallParametersCountOnEachRank(ReferenceRankGroup):
    """A parameter with fewer rows than ranks is not sharded, and its gradient counts in the norm once for each rank."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        whole = {name: self.gathered(name, [own[name] for own in self.windows]) for name in names}
        shards = self.ranks.shards
        counted = {n: g * math.sqrt(shards) if len(np.atleast_1d(g)) < shards else g for n, g in whole.items()}
        return ReferenceTrainer.gradient_norm(self.first, counted)


@fault("https://github.com/pytorch/pytorch/issues/190626", "sharding.reduces-in-the-asked-format")
class ReplicasReduceInBfloat16(ReferenceRankGroup):
    """Under mixed bfloat16, what the replicas of a mesh have reduced is added up in bfloat16, whatever the requested
    format."""

    def reduce(self, name: str, parts: Sequence[Array]) -> Array:
        size = self.ranks.shards
        if self.ranks.replicas == 1 or self.recipe.precision.format != "bfloat16":
            return super().reduce(name, parts)
        total = np.zeros_like(parts[0])
        for start in range(0, self.count, size):
            share = self.ops.rounding.round(super().reduce(name, parts[start : start + size]), "bfloat16")
            total = self.ops.rounding.round(total + share, "bfloat16")
        return total
