"""Faults of groups of parameters with rates and decays of their own."""

from __future__ import annotations

from dataclasses import replace

from frameworks.reference.training.optimizers import UpdateRule
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/LiyuanLucasLiu/RAdam/issues/24", "optimizer.group-rates")
class EveryGroupHasTheFirstRate(ReferenceTrainer):
    """The rate of the first group updates all."""

    def rate_of(self, name: str, rate: float) -> float:
        return rate


@fault("https://github.com/microsoft/hi-ml/issues/611", "optimizer.group-rates")
class ScheduleSetsOneRate(ReferenceTrainer):
    """A schedule that has moved gives all groups one rate."""

    def rate_of(self, name: str, rate: float) -> float:
        return rate if self.factor() != 1.0 else super().rate_of(name, rate)


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/11269", "optimizer.group-rates")
class EveryGroupDecaysAlike(ReferenceTrainer):
    """The weight decay of the first group acts on all."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        rule.optimizer = replace(rule.optimizer, weight_decay=self.recipe.optimizer.weight_decay)
        rule.decay = float(self.recipe.optimizer.weight_decay)
        return rule
