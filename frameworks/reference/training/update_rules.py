"""The update rule of each optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fixtures.recipe import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, Recipe, RMSprop
from fixtures.schedules import OneCycle
from frameworks.reference.training.matrix_optimizers import AdafactorRule, MuonRule
from frameworks.reference.training.optimizers import AdagradRule, AdamRule, AdamWRule, RMSpropRule, SGDRule, UpdateRule

RULES: Mapping[type[Optimizer], type[UpdateRule]] = {
    SGD: SGDRule,
    Adam: AdamRule,
    AdamW: AdamWRule,
    Adagrad: AdagradRule,
    RMSprop: RMSpropRule,
    Adafactor: AdafactorRule,
    Muon: MuonRule,
}
"""The update rule of each optimizer."""


def optimizer_of(recipe: Recipe, group: int, applied: int) -> Optimizer:
    """The optimizer of a group in the update after so many applied ones: a cycle may change its momentum or beta1."""
    optimizer, schedule = recipe.of_groups[group], recipe.schedule
    momentum = schedule.momentum(applied) if isinstance(schedule, OneCycle) else None
    if momentum is None:
        return optimizer
    changed: dict[str, Any] = {"momentum" if hasattr(optimizer, "momentum") else "beta1": momentum}
    return replace(optimizer, **changed)
