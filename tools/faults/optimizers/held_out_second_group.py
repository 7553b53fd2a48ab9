"""Faults of what is not like the first: the second group of parameters, a parameter without a first gradient."""

from __future__ import annotations

from types import MappingProxyType

from fixtures.arrays import Array
from fixtures.recipe import SGD
from fixtures.schedules import Chained, Joined, OneCycle
from frameworks.reference.training.optimizers import SGDRule, UpdateRule
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.reference.training.update_rules import RULES
from tools.faults import fault


@fault("", "master.decay-of-nobody")
class SecondGroupDecaysAll(ReferenceTrainer):
    """A second group with a weight decay of its own decays its parameters that are to be left out, too."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        if self.group_of(name) == 1 and self.recipe.second_decay is not None:
            rule.decay = self.recipe.second_decay
        return rule


@fault("", "optimizer.schedules")
class MomentumCyclesInTheFirstGroupAlone(ReferenceTrainer):
    """A schedule that cycles the momentum, or beta1, changes that of the first group alone."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        if self.group_of(name) == 1 and isinstance(self.recipe.schedule, OneCycle):
            rule.optimizer = self.recipe.of_groups[1]
        return rule


@fault("https://github.com/microsoft/hi-ml/issues/611", "optimizer.schedules")
class SecondGroupFollowsTheFirstPart(ReferenceTrainer):
    """Of a join or product of schedules, the rate of a second group with a rate of its own follows the first part."""

    def rate_of(self, name: str, rate: float) -> float:
        own, schedule = self.recipe.of_groups[self.group_of(name)].learning_rate, self.recipe.schedule
        if own == self.recipe.optimizer.learning_rate or not isinstance(schedule, Joined | Chained):
            return super().rate_of(name, rate)
        return own * schedule.parts[0].factor(self.schedule)


class _DampeningFromTheRunsStart(SGDRule):
    late = False

    def joining(self, g: Array, count: int) -> Array:
        return super().joining(g, 2 if self.late else count)


@fault("", "optimizer.options")
class LateParametersAreDampenedAtOnce(ReferenceTrainer):
    """The first gradient of a parameter that had none in the run's first update is dampened."""

    rules = MappingProxyType({**RULES, SGD: _DampeningFromTheRunsStart})

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        if isinstance(rule, _DampeningFromTheRunsStart):
            rule.late = self.steps > 0
        return rule
