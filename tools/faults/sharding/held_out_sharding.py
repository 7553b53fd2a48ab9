"""Held-out faults of sharding: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Sequence

from frameworks.reference import ReferenceFramework
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from frameworks.reference.training.decisions import Arrays
from tools.faults import fault


class _MeanOfThoseThatUsed(ReferenceRankGroup):
    """Gradients are averaged over the ranks that have one."""

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        users = {name: sum(name in own for own in gradients) for name in self.first.masters}
        return {
            name: gradient * (self.count / users[name]) if users[name] else gradient
            for name, gradient in super().reduced(gradients).items()
        }


@fault("", "sharding.missing-gradient")
class MissingGradientsAreNotZeros(ReferenceFramework):
    """The gradient of a parameter that only some ranks use is averaged over these, so it is too large by all / some."""

    rank_group_class = _MeanOfThoseThatUsed
