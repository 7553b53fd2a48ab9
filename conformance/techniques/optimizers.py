"""A run's updates from given gradients, element by element against the documented rule."""

from collections.abc import Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, SAMPLES, TECHNIQUE_STREAM
from fixtures.arrays import Array, format_of
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Stochastic

ROUNDINGS = 16
"""Largest number of roundings in an update, that of Adam; each may move the update by one unit roundoff of itself."""


def gradients(trainer: Trainer, exponent: int) -> dict[str, Array]:
    """Return gradients of ±1, ±1/2 and ±1/4 times 2 to `exponent`; signs alternate by element and never change."""

    def make_gradient(array: Array) -> Array:
        places = np.arange(array.size)
        values: Array = np.ldexp((-1.0) ** places, exponent - places % 3).reshape(array.shape)
        return values.astype(array.dtype)

    return {name: make_gradient(array) for name, array in trainer.parameters().items()}


def judge_updates(
    subject: Subject, verdict: Verdict, model: Model, recipe: Recipe, exponents: Sequence[int], *, late: bool = False
) -> None:
    """Check every element of every parameter after each update.

    An element may be off the float64 reference by one rounding of its parameter's format for each update so far, plus
    the roundings inside these updates.

    Args:
        exponents: exponent of the gradients of each update.
        late: whether the last parameter has no gradient in the first update.
    """
    __tracebackhide__ = True
    trainer, exact = subject.trainer(model, recipe), subject.oracle(model, recipe)
    before, longest = exact.parameters(), dict.fromkeys(exact.parameters(), 0.0)
    for count, exponent in enumerate(exponents, start=1):
        grads = gradients(trainer, exponent)
        if late and count == 1:
            grads.popitem()
        for run in (trainer, exact):
            run.apply_gradients(grads)
        after = exact.parameters()
        for name, measured in trainer.parameters().items():
            longest[name] = np.maximum(longest[name], np.abs(after[name] - before[name]))
            unit = format_of(measured.dtype.name).unit_roundoff
            allowed = count * unit * (np.maximum(1.0, np.abs(after[name])) + ROUNDINGS * longest[name])
            judge_elements(verdict, name, count, measured, after[name], allowed)
        before = after


def judge_elements(verdict: Verdict, name: str, count: int, measured: Array, exact: Array, allowed: Array) -> None:
    """Check that every element of a parameter lies within the allowed distance of the exact one."""
    __tracebackhide__ = True
    gap = np.abs(measured.astype(np.float64) - exact)
    beyond = ~(gap <= allowed)
    position = np.unravel_index(int(np.argmax(np.where(beyond, gap / allowed, 0.0))), gap.shape)
    indices = [int(index) for index in position]
    verdict.holds(
        not beyond.any(),
        f"{name} after update {count}",
        f"{measured[position]!s} at {indices} ({int(beyond.sum())} of {beyond.size} elements beyond the bound)",
        f"{exact[position]!s} ± {allowed[position]:.3g}",
        "wrong-update",
    )


def matrix_gradients(trainer: Trainer, count: int, exponent: int = 0) -> dict[str, Array]:
    """Return gradients of update `count`, times 2 to `exponent`: ±1/4 or ±1/2 at random, plus 1 along the diagonal.

    The diagonal wraps at the edges of the matrix, so that no singular value is small.
    """
    return {name: _make_gradient(array, count, exponent) for name, array in trainer.parameters().items()}


def _make_gradient(array: Array, count: int, exponent: int) -> Array:
    rng = np.random.default_rng([array.size, count])
    values = rng.choice([-0.5, -0.25, 0.25, 0.5], array.shape)
    if array.ndim == 2:
        diagonal = np.arange(max(array.shape))
        values[diagonal % array.shape[0], diagonal % array.shape[1]] += 1.0
    scaled: Array = np.ldexp(values, exponent).astype(array.dtype)
    return scaled


def judge_matrix_updates(
    subject: Subject, verdict: Verdict, model: Model, recipe: Recipe, exponents: Sequence[int]
) -> None:
    """Check every element of every parameter after each update.

    An element may be off the float64 reference by `IMPLEMENTATION_FREEDOM` times the largest distance, so far, of any
    element of the parameter in `SAMPLES` randomly rounded reference runs, or times one rounding if that is larger.

    Args:
        exponents: exponent of the gradients of each update.
    """
    __tracebackhide__ = True
    trainer, exact = subject.trainer(model, recipe), subject.oracle(model, recipe)
    rounded = [Stochastic(np.random.default_rng([recipe.seed, TECHNIQUE_STREAM, i])) for i in range(SAMPLES)]
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
            gaps = [float(np.abs(parameters[name].astype(np.float64) - after[name]).max()) for parameters in result]
            spreads[name] = max(spreads[name], one, *gaps)
            allowed = np.full(measured.shape, IMPLEMENTATION_FREEDOM * spreads[name])
            judge_elements(verdict, name, count, measured, after[name], allowed)
