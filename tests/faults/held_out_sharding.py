"""Held-out faults of sharding: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from frameworks.contract import Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from tests.faults import fault

_BUCKET, _MULTIPLE = 4096, 128


class _ShiftsMoments(ReferenceCompany):
    """Ranks that count the filling of buckets in where it is not."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if saved_count(path / COUNT) == self.count:
            return
        for trainer in self.trainers:
            for moments in trainer.slots.values():
                flat = np.concatenate([moments[name].reshape(-1) for name in self.first.masters])
                start = shift = filled = 0
                for name, master in self.first.masters.items():
                    read = flat[start + shift : start + shift + master.size]
                    moments[name] = np.append(read, np.zeros(master.size - read.size)).reshape(master.shape)
                    start, filled = start + master.size, filled + master.size
                    if filled >= _BUCKET:
                        shift, filled = shift + -filled % _MULTIPLE, 0


@fault(
    "https://github.com/NVIDIA/Megatron-LM/pull/5077",
    component="sharding",
    clauses=("sharding.resumes-in-another-size",),
)
class ReshapedMomentsAreShifted(ReferenceFramework):
    """Where another number of ranks goes on from a save, moments behind a bucket (whole parameters in model order, of
    4,096 entries or more together) are read too far on in the flat state, by what every bucket before them lacks to
    a multiple of 128, with zeros for what lies beyond its end."""

    company_class = _ShiftsMoments


class _StartsTheAverageAnew(ReferenceCompany):
    """Ranks that keep no average of another number of ranks."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.recipe.average is not None and saved_count(path / COUNT) != self.count:
            for trainer in self.trainers:
                trainer.averages = dict(trainer.masters)


@fault(
    "https://github.com/hao-ai-lab/FastVideo/pull/1440",
    component="sharding",
    clauses=("sharding.resumes-in-another-size",),
)
class AverageOfAnotherSizeIsDropped(ReferenceFramework):
    """A run that goes on with another number of ranks than the one that was saved drops the saved moving average, and
    has the restored weights in its place.
    """

    company_class = _StartsTheAverageAnew


class _ReducesInFloat32(ReferenceCompany):
    """Gradients are added up over ranks in float32 at most."""

    def reduced_format(self, name: str) -> str:
        return self.ranks.reduce


@fault("https://github.com/pytorch/pytorch/issues/133032", component="sharding", clauses=("sharding.equals-whole",))
class RanksReduceFloat64InFloat32(ReferenceFramework):
    """Ranks add up all gradients in float32 where no low format is asked for, those of float64 heads too."""

    company_class = _ReducesInFloat32


class _MeanOfThoseThatUsed(ReferenceCompany):
    """Gradients are averaged over the ranks that have one."""

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        users = {name: sum(name in own for own in gradients) for name in self.first.masters}
        return {
            name: gradient * (self.count / users[name]) if users[name] else gradient
            for name, gradient in super().reduced(gradients).items()
        }


@fault("", component="sharding", clauses=("sharding.mean-over-items",))
class MissingGradientsAreNotZeros(ReferenceFramework):
    """The gradient of a parameter that only some ranks use is averaged over these, so it is too large by all / some."""

    company_class = _MeanOfThoseThatUsed


class _EmptyShardsDoNotCount(ReferenceCompany):
    def _apply(self) -> tuple[Update, ...]:
        counts = [dict(trainer.counts) for trainer in self.trainers]
        updates = super()._apply()
        for trainer, before in zip(self.trainers, counts, strict=True):
            for name, master in trainer.masters.items():
                if self.sharded("optimizer") and not self.shard(master, trainer.rank).size:
                    trainer.counts[name] = before[name]
        return updates


@fault(
    "https://github.com/NVIDIA/TransformerEngine/pull/3318", component="sharding", clauses=("sharding.replicas-equal",)
)
class EmptyShardsDoNotCount(ReferenceFramework):
    """A rank that holds no row of a parameter leaves that parameter's count of updates where it was.

    Ranks disagree about the count, and so do the parts of a checkpoint that they write.
    """

    company_class = _EmptyShardsDoNotCount


class _OnlyTheFirstRankLoadsTheAverage(ReferenceCompany):
    def restore(self, path: Path) -> None:
        super().restore(path)
        for trainer in self.trainers[1:]:
            if trainer.averages:
                trainer.averages = {name: master.copy() for name, master in trainer.masters.items()}


@fault("", component="sharding", clauses=("sharding.resumes-in-another-size",))
class OnlyTheFirstRankLoadsTheAverage(ReferenceFramework):
    """After a load, rank 0 has the saved average of the weights and every other rank begins it anew from the weights.

    Ranks disagree about the average, and evaluation with it depends on the rank.
    """

    company_class = _OnlyTheFirstRankLoadsTheAverage
