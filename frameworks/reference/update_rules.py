"""The update rule of each optimizer."""

from __future__ import annotations

from collections.abc import Mapping

from fixtures.recipe import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from frameworks.reference.matrix_optimizers import AdafactorRule, MuonRule
from frameworks.reference.optimizers import AdagradRule, AdamRule, AdamWRule, RMSpropRule, SGDRule, UpdateRule

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
