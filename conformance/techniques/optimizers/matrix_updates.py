"""Updates of matrices as wholes, whose rounding errors no count of operations bounds: the reference's ensemble does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, SAMPLES
from conformance.techniques.optimizers.documented_updates import judge_elements
from fixtures.arrays import Array, format_of
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Stochastic


def matrix_gradients(trainer: Trainer, count: int, exponent: int = 0) -> dict[str, Array]:
    """Gradients of update `count` times a power of two: ±1/4 or ±1/2 at random, and 1 more along a matrix' diagonal.

    The diagonal goes on at the first row or column where it leaves the matrix, so that no singular value is small.
    """
    return {name: _make_gradient(array, count, exponent) for name, array in trainer.parameters().items()}


def _make_gradient(array: Array, count: int, exponent: int) -> Array:
    rng = np.random.default_rng([array.size, count])
    values = rng.choice([-0.5, -0.25, 0.25, 0.5], array.shape)
    if array.ndim == 2:
        along = np.arange(max(array.shape))
        values[along % array.shape[0], along % array.shape[1]] += 1.0
    scaled: Array = np.ldexp(values, exponent).astype(array.dtype)
    return scaled


def judge_matrix_updates(
    subject: Subject, verdict: Verdict, model: Model, recipe: Recipe, exponents: Sequence[int]
) -> None:
    """Checks every element of every parameter after each update.

    An element may lie off the float64 reference by `IMPLEMENTATION_FREEDOM` times the largest distance, so far, of an
    element of the parameter in `SAMPLES` randomly rounded reference runs, or of one rounding.

    Args:
        exponents: of the gradients of each update.
    """
    __tracebackhide__ = True
    trainer, exact = subject.trainer(model, recipe), subject.oracle(model, recipe)
    rounded = [Stochastic(np.random.default_rng([recipe.seed, 12, i])) for i in range(SAMPLES)]
    frameworks = [ReferenceFramework("cpu", conventions=subject.conventions, rounding=rounding) for rounding in rounded]
    members = [framework.trainer(model, subject.in_place(recipe)) for framework in frameworks]
    spreads = dict.fromkeys(exact.parameters(), 0.0)
    for count, exponent in enumerate(exponents, start=1):
        grads = matrix_gradients(trainer, count, exponent)
        for run in (trainer, exact, *members):
            run.apply_gradients(grads)
        result, after = [member.parameters() for member in members], exact.parameters()
        for name, measured in trainer.parameters().items():
            one = format_of(measured.dtype.name).unit_roundoff * float(np.abs(after[name]).max())
            far = [float(np.abs(parameters[name].astype(np.float64) - after[name]).max()) for parameters in result]
            spreads[name] = max(spreads[name], one, *far)
            allowed = np.full(measured.shape, IMPLEMENTATION_FREEDOM * spreads[name])
            judge_elements(verdict, name, count, measured, after[name], allowed)
