"""Optimizers whose update depends on the whole matrix: Adafactor and Muon."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.checks.api import Subject, Verdict, clause, spike_gradients
from conformance.techniques.optimizers import judge_matrix_updates, matrix_gradients
from fixtures.model import Model
from fixtures.models import exact_linear, matrices
from fixtures.optimizers import Adafactor, Muon, Optimizer
from fixtures.recipe import PURE_LOW, DynamicScaling, Implementation, Precision, Recipe, Steps

RATE = 2.0**-4
MUON = Muon(RATE, momentum=0.75, coefficients=(2.0, -1.5, 0.5))
"""Muon with coefficients by which singular values converge to 1; with the default ones, bfloat16's errors grow."""
OPTIMIZERS: dict[str, Optimizer] = {"adafactor": Adafactor(RATE), "muon": MUON}
OPTIONS: dict[str, Optimizer] = {
    "adafactor-numbers": Adafactor(0.625, decay=0.5, epsilon1=2.0**-4, threshold=1.125, weight_decay=0.25),
    "adafactor-epsilon2": Adafactor(RATE, epsilon2=0.75),
    "adafactor-absolute": Adafactor(0.625, relative_step=False),
    "adafactor-smallest": Adafactor(RATE, smallest=5),
    "adafactor-maximize": Adafactor(RATE, maximize=True),
    "muon-default": Muon(RATE),
    "muon-numbers": replace(MUON, nesterov=False, steps=1, weight_decay=0.25),
    "muon-width": replace(MUON, adjustment="width"),
    "muon-unadjusted": replace(MUON, adjustment="none"),
}
CHOSEN: tuple[Implementation, ...] = ("single", "foreach", "fused", "capturable")
PAPERS_EPSILON = 1e-30
"""Adafactor's epsilon 1 by Shazeer and Stern, arXiv:1804.04235, algorithm 6."""
EXPONENTS = (0, -2, 0)
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def model_of(optimizer: Optimizer) -> Model:
    """Return a model of matrices for Muon; for Adafactor also with a vector, whose initial values are zero."""
    return matrices() if isinstance(optimizer, Muon) else exact_linear()


@clause("optimizer.implementations-agree")
@each_optimizer
@pytest.mark.parametrize("implementation", CHOSEN)
def test_implementation_updates_matrices(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], implementation=implementation)
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.implementations-agree")
@pytest.mark.parametrize(
    ("optimizer", "precision"),
    zip(OPTIMIZERS, PURE_LOW, strict=True),
    ids=[f"{o}-{p.format}" for o, p in zip(OPTIMIZERS, PURE_LOW, strict=True)],
)
def test_implementation_updates_low_precision_matrices(
    subject: Subject, verdict: Verdict, optimizer: str, precision: Precision
) -> None:
    recipe = Recipe(replace(OPTIMIZERS[optimizer], learning_rate=0.5), precision)
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.options")
@pytest.mark.parametrize("option", OPTIMIZERS | OPTIONS)
def test_matrix_optimizer_options(subject: Subject, verdict: Verdict, option: str) -> None:
    recipe = Recipe((OPTIMIZERS | OPTIONS)[option])
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.options")
@each_optimizer
def test_tensor_learning_rate_of_matrix_optimizer(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], schedule=Steps((2,), (1.0, 0.5)), tensor_rate=True)
    judge_matrix_updates(subject, verdict, model_of(recipe.optimizer), recipe, EXPONENTS)


@clause("optimizer.options")
def test_muon_uses_adam_for_vectors(subject: Subject, verdict: Verdict) -> None:
    judge_matrix_updates(subject, verdict, exact_linear(), Recipe(OPTIMIZERS["muon"]), EXPONENTS)


@clause("optimizer.options")
def test_row_without_gradients_does_not_change(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(Adafactor(RATE, epsilon1=PAPERS_EPSILON)))
    name, *_ = before = trainer.parameters()
    for count in (1, 2):
        grads = matrix_gradients(trainer, count)
        grads[name][0] = 0.0
        trainer.apply_gradients(grads)
    after = trainer.parameters()
    verdict.differs(before, after, "parameters over two updates")
    verdict.equal(after[name][0], before[name][0], f"{name}[0] after two updates with zeros for it", "row-moved")


@clause("scaling.skip-is-atomic")
def test_skipped_update_does_not_change_matrix_statistics(subject: Subject, verdict: Verdict) -> None:
    recipe = Recipe(OPTIMIZERS["adafactor"], scaling=DynamicScaling(initial=2.0**10))
    skipping, plain = (subject.trainer(exact_linear(), recipe) for _ in range(2))
    for count, bad in enumerate((math.inf, -math.inf, math.nan), start=1):
        update = skipping.apply_gradients(spike_gradients(skipping, bad, base=1.0))
        verdict.holds(update.skipped, f"{bad} is reported as a skip", update.skipped, True, "unreported")
        for run in (skipping, plain):
            run.apply_gradients(matrix_gradients(run, count))
    states = subject.state(skipping), subject.state(plain)
    verdict.same_state(*states, "state after three finite updates", ignoring=("scaler/", "random/"))


@clause("resume.bit-identical")
def test_matrix_statistics_resume(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    through, resumed = (subject.trainer(exact_linear(), Recipe(OPTIMIZERS["adafactor"])) for _ in range(2))
    for count in (1, 2):
        through.apply_gradients(matrix_gradients(through, count))
    through.save(tmp_path / "run")
    resumed.restore(tmp_path / "run")
    for count in (3, 4):
        for run in (through, resumed):
            run.apply_gradients(matrix_gradients(run, count))
    verdict.same_state(subject.state(resumed), subject.state(through), "training state after two more updates")
