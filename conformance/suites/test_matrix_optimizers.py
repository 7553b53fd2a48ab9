"""Optimizers that treat a matrix as one: Adafactor and Muon."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from conformance.judging.kit import Subject, Verdict, clause, spiked
from conformance.judging.matrix_updates import gradients, judge_matrix_updates
from fixtures.model import Model
from fixtures.models import matrices, two_heads
from fixtures.recipe import (
    PURE_LOW,
    Adafactor,
    DynamicScaling,
    Implementation,
    Muon,
    Optimizer,
    Precision,
    Recipe,
    Steps,
)

RATE = 2.0**-4
OPTIMIZERS: dict[str, Optimizer] = {"adafactor": Adafactor(RATE), "muon": Muon(RATE, momentum=0.75)}
OPTIONS: dict[str, Optimizer] = {
    "adafactor-cap": Adafactor(0.625),
    "adafactor-share": Adafactor(RATE, decay=0.5),
    "adafactor-epsilon1": Adafactor(RATE, epsilon1=2.0**-4),
    "adafactor-epsilon2": Adafactor(RATE, epsilon2=0.5),
    "adafactor-threshold": Adafactor(RATE, threshold=1.125),
    "adafactor-absolute": Adafactor(0.625, relative_step=False),
    "adafactor-smallest": Adafactor(RATE, smallest=4),
    "adafactor-decay": Adafactor(RATE, weight_decay=0.25),
    "adafactor-maximize": Adafactor(RATE, maximize=True),
    "muon-classical": Muon(RATE, momentum=0.75, nesterov=False),
    "muon-steps": Muon(RATE, momentum=0.75, steps=3),
    "muon-coefficients": Muon(RATE, momentum=0.75, coefficients=(2.0, -1.5, 0.5)),
    "muon-width": Muon(RATE, momentum=0.75, adjustment="width"),
    "muon-unadjusted": Muon(RATE, momentum=0.75, adjustment="none"),
    "muon-decay": Muon(RATE, momentum=0.75, weight_decay=0.25),
}
CHOSEN: tuple[Implementation, ...] = ("single", "foreach", "fused", "capturable")
EXPONENTS = (0, -2, 0)
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def model_of(optimizer: Optimizer) -> Model:
    """Matrices for Muon; for Adafactor vectors too, which begin with zeros."""
    return matrices() if isinstance(optimizer, Muon) else two_heads()


@clause("optimizer.implementations-agree")
@each_optimizer
@pytest.mark.parametrize("implementation", CHOSEN)
def test_an_implementation_updates_matrices(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], implementation=implementation)
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.implementations-agree")
@each_optimizer
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
def test_matrices_in_low_formats(subject: Subject, verdict: Verdict, precision: Precision, optimizer: str) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], precision)
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.options")
@pytest.mark.parametrize("option", OPTIMIZERS | OPTIONS)
def test_an_option_of_matrices_makes_its_update(subject: Subject, verdict: Verdict, option: str) -> None:
    recipe = Recipe((OPTIMIZERS | OPTIONS)[option])
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.options")
@each_optimizer
def test_a_tensor_as_rate_updates_matrices(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], schedule=Steps((2,), (1.0, 0.5)), tensor_rate=True)
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.options")
def test_muon_leaves_vectors_to_adam(subject: Subject, verdict: Verdict) -> None:
    judge_matrix_updates(subject, verdict, two_heads(), Recipe(OPTIMIZERS["muon"]), EXPONENTS)


@clause("scaling.skip-is-atomic")
@each_optimizer
def test_a_skip_leaves_the_statistics_of_matrices(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], scaling=DynamicScaling(initial=2.0**10))
    skipping, plain = (subject.trainer(model_of(recipe.optimizer), recipe) for _ in range(2))
    for count in range(1, 4):
        bad = (math.inf, -math.inf, math.nan)[count - 1]
        update = skipping.feed(spiked(skipping, bad, base=1.0))
        verdict.holds(update.skipped, f"{bad} is reported as a skip", update.skipped, True, "unreported")
        for run in (skipping, plain):
            run.feed(gradients(run, count))
    states = subject.state(skipping), subject.state(plain)
    verdict.same_state(*states, "state after three finite updates", but=("scaler/", "random/"))


@clause("resume.bit-identical")
@each_optimizer
def test_statistics_of_matrices_go_on_where_they_were(
    subject: Subject, verdict: Verdict, tmp_path: Path, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer])
    through, resumed = (subject.trainer(model_of(recipe.optimizer), recipe) for _ in range(2))
    for count in (1, 2):
        through.feed(gradients(through, count))
    through.save(tmp_path / "run")
    resumed.restore(tmp_path / "run")
    for count in (3, 4):
        for run in (through, resumed):
            run.feed(gradients(run, count))
    verdict.same_state(subject.state(resumed), subject.state(through), "training state after two more updates")
