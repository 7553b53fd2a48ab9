"""Faults of what ranks decide: who skips, what scale follows, which norm clips."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frameworks.reference.distributed.ranks import ReferenceRankGroup
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/115710", component="sharding", clauses=("sharding.one-decision",))
class EachRankDecidesForItself(ReferenceRankGroup):
    """Overflow is read before it has been reduced: only the rank that has it skips."""

    def _agree(self) -> None:
        findings = []
        super()._agree()
        for trainer in self.trainers:
            trainer.agreed = None
            findings.append(ReferenceTrainer.judge(trainer))
        for trainer, result in zip(self.trainers, findings, strict=True):
            trainer.agreed = result


@fault("https://github.com/pytorch/pytorch/issues/99174", component="sharding", clauses=("sharding.one-decision",))
class FirstRankDecides(ReferenceRankGroup):
    """What rank 0 finds in its own shard is what all do."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return findings[0]


@fault(
    "https://github.com/nerfstudio-project/nerfstudio/pull/1919",
    component="sharding",
    clauses=("sharding.one-decision",),
)
class AllMustOverflow(ReferenceRankGroup):
    """An update is skipped only where every rank finds an overflow."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return frozenset(findings[0]).intersection(*findings)


@fault(
    "https://github.com/huggingface/accelerate/pull/2790",
    component="sharding",
    clauses=("sharding.one-decision", "sharding.replicas-equal"),
)
class ScaleMovesOnOneRank(ReferenceRankGroup):
    """After a skip all ranks agree on, only rank 0's scale is lowered."""

    def _part(self) -> None:
        super()._part()
        if self.first.scaler is not None and self.first.scaler.good_steps == 0:
            for trainer in self.trainers[1:]:
                if trainer.scaler is not None:
                    trainer.scaler = trainer.scaler.at(2.0 * self.first.scaler.scale, 0)


@fault("https://github.com/pytorch/pytorch/pull/88955", component="sharding", clauses=("sharding.global-clip",))
class NormCountsReplicas(ReferenceRankGroup):
    """The squares of every rank's copy are added up, so that the norm grows with the replicas."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        return super().norm(rank, names) * float(np.sqrt(self.count / self.ranks.shards))


@fault("https://github.com/pytorch/pytorch/issues/170862", component="sharding", clauses=("sharding.global-clip",))
class NormOfOneShard(ReferenceRankGroup):
    """Each rank clips by the norm of the shard that it holds."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        gradients: Arrays = {name: self.windows[rank][name] for name in names}
        if self.sharded("gradient"):
            gradients = {name: self.shard(value, rank) for name, value in gradients.items()}
        return ReferenceTrainer.gradient_norm(self.first, gradients)


@fault("https://github.com/keras-team/keras/issues/16285", component="sharding", clauses=("sharding.global-clip",))
class ClipsBeforeTheReduction(ReferenceRankGroup):
    """Each rank's own gradient is clipped, and the clipped ones are averaged."""

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        limit = self.recipe.clip
        if limit is None:
            return super().reduced(gradients)
        clipped = []
        for own in gradients:
            norm = ReferenceTrainer.gradient_norm(self.first, own) * self.count
            factor = min(1.0, limit / norm) if norm else 1.0
            clipped.append({name: value * factor for name, value in own.items()})
        return super().reduced(clipped)


@fault(
    "https://github.com/tracel-ai/burn/issues/5695", component="sharding", clauses=("sharding.schedule-counts-updates",)
)
class ScheduleCountsRanks(ReferenceRankGroup):
    """An update moves the schedule by as many steps as there are ranks."""

    def schedule_steps(self) -> int:
        return self.count
