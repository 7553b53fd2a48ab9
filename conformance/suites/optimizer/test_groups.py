"""Parameter groups: a learning rate and a weight decay for each group."""

from pathlib import Path

import pytest

from conformance.checks import combinations
from conformance.checks.api import Subject, Verdict, clause
from conformance.checks.combinations import Row
from conformance.techniques.optimizers import judge_updates
from fixtures.models import two_heads
from fixtures.recipe import SGD, AdamW, Optimizer, Recipe, Steps
from frameworks.ways import Way

RATE = 2.0**-5
MOMENTUM = SGD(RATE, momentum=0.5)
OPTIMIZERS: dict[str, tuple[Optimizer, float | None]] = {
    "momentum": (MOMENTUM, None),
    "adamw": (AdamW(RATE, beta1=0.5, beta2=0.75, epsilon=2.0**-10, weight_decay=0.25), 2.0),
}
"""Optimizers by name, each with the weight decay of the second group."""
SECOND = 4.0 * RATE
HALVED = Steps((2,), (1.0, 0.5))


@clause("optimizer.group-rates")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_group_has_its_own_rate_and_decay(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    chosen, decay = OPTIMIZERS[optimizer]
    recipe = Recipe(chosen, groups=2, second_rate=SECOND, second_decay=decay, schedule=HALVED)
    judge_updates(subject, verdict, two_heads(), recipe, (0, -2, 0, -1))


@clause("optimizer.group-rates")
def test_each_way_keeps_group_rates(subject: Subject, verdict: Verdict, rate_way: Way) -> None:
    recipe = Recipe(MOMENTUM, groups=2, second_rate=SECOND, schedule=HALVED, ways=(str(rate_way),))
    judge_updates(subject, verdict, two_heads(), recipe, (0, -2, 0, -1))


@clause("optimizer.group-rates")
def test_group_rates_resume(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    recipe = Recipe(AdamW(2.0**-4, epsilon=1.0, weight_decay=0.25), schedule=Steps((1, 3), (1.0, 0.5, 0.25)))
    recipe = recipe.replace(groups=2, second_rate=2.0**-2, second_decay=1.0)
    row = Row((("groups", "rates"),), recipe, dropout=False, norm=False)
    combinations.compare(subject, verdict, row, tmp_path)
