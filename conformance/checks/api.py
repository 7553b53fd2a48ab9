"""What the suites import: the clause mark, runs that several suites start from, and names of other modules."""

# ruff: noqa: F401
from collections.abc import Mapping

import numpy as np
import pytest

from conformance.checks.evidence import Verdict
from conformance.checks.failing_layer import naming_the_layer
from conformance.checks.subject import Subject, full, need, need_device, need_rule, spike_gradients, supports
from conformance.oracle.automaton import Scale
from conformance.oracle.bound import Bound
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import DynamicScaling, Optimizer, Recipe, Steps
from frameworks.contract import Trainer


def clause(identifier: str) -> pytest.MarkDecorator:
    """Mark a test as a test of one clause of the specification."""
    return pytest.mark.clause(identifier)


def train(trainer: Trainer, start: int, stop: int, micro_batches: int = 1) -> None:
    """Make updates `start` to `stop` - 1 of an exact model, each on a different batch of eight samples."""
    for seed in range(start, stop):
        trainer.update(exact_batch(8, seed=seed).into(micro_batches))


def narrow(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the float64 reference's arrays in float32, which holds them without rounding on exact fixtures."""
    return {name: value.astype(np.float32) for name, value in arrays.items()}


def run_two_updates(subject: Subject, optimizer: Optimizer, **changes: object) -> Trainer:
    """Return a run of the exact linear model after two updates, so that moments and counters have changed.

    Args:
        changes: other values of the recipe's fields than a dynamic loss scale of 2^10 and a schedule of three rates.
    """
    schedule = Steps((1, 3), (1.0, 0.5, 0.25))
    recipe = Recipe(optimizer, scaling=DynamicScaling(initial=2.0**10), schedule=schedule)
    trainer = subject.trainer(exact_linear(), recipe.replace(**changes))
    for _ in range(2):
        trainer.apply_gradients(full(trainer, 2.0**-3))
    return trainer


def of_one_pass(subject: Subject, verdict: Verdict) -> None:
    """Abstain from a test of a single backward pass if the mode trains every recipe on several ranks.

    Raises:
        Abstention: the mode does; gradients of ranks are sums of several passes.
    """
    if subject.framework.ranks() is not None:
        verdict.abstain("gradients are sums over ranks here, which are wider than what one pass gives")
