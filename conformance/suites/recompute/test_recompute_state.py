"""Recomputation has no effect on other runs, windows, the scaler, evaluation and the process."""

import math

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause
from conformance.techniques.recompute import make_runs
from fixtures.data import digits_batch, exact_batch
from fixtures.model import Activation, Batch, BatchNorm, Dense, Dropout, Head, Heads, Model
from fixtures.models import digits_mlp, dropout_probe
from fixtures.recipe import SGD, DynamicScaling, Recipe, Recompute

RECIPE = Recipe(SGD(2.0**-4, momentum=0.5))


@clause("recompute.failure-leaves-no-trace")
def test_error_in_recomputed_forward(subject: Subject, verdict: Verdict, variant: str) -> None:
    rng = np.random.default_rng(9)
    x, w = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal((8, 3)).astype(np.float32)
    batch = Batch(np.ones((4, 64), np.float32), {"output": np.ones((4, 1), np.float32)})
    undisturbed, disturbed = (subject.trainer(dropout_probe(), RECIPE) for _ in range(2))
    for run in (undisturbed, disturbed, undisturbed):
        run.update((batch,))
    expected, before = subject.state(undisturbed), subject.framework.global_state()
    raised = False
    try:
        subject.framework.recompute("raises", x, w, variant)
    except Exception:
        raised = True
    after = subject.framework.global_state()
    subject.framework.restore_global_state(before)
    verdict.holds(raised, "the error of the recomputed forward reaches the caller", raised, True, "error-swallowed")
    verdict.equal(after, before, "process-wide settings after the error", "settings-leaked")
    disturbed.update((batch,))
    verdict.same_state(subject.state(disturbed), expected, "another run is not affected")


@clause("recompute.with-accumulation")
@pytest.mark.parametrize("k", [3])
def test_recomputation_within_window(subject: Subject, verdict: Verdict, k: int, variant: str) -> None:
    plain, recomputed = make_runs(
        subject, digits_mlp((64, 32)), RECIPE.replace(accumulation=k), Recompute(2, variant=variant)
    )
    for start in (0, 12):
        for run in (plain, recomputed):
            run.update(digits_batch(12, start).into(k))
    verdict.same_state(subject.state(recomputed), subject.state(plain), "state after two windows")


@clause("recompute.with-scaling")
def test_overflow_in_recomputed_segment(subject: Subject, verdict: Verdict, variant: str) -> None:
    batch = digits_batch(8)
    inputs = batch.inputs.copy()
    inputs[0, 300] = math.inf
    spoilt = Batch(inputs, batch.targets)
    recipe = RECIPE.replace(scaling=DynamicScaling(initial=2.0**10))
    plain, recomputed = make_runs(subject, digits_mlp((64, 32)), recipe, Recompute(2, variant=variant))
    for window in ((batch,), (spoilt,), (batch,)):
        skipped = [run.update(window).skipped for run in (plain, recomputed)]
        verdict.equal(skipped[1], skipped[0], "whether the update is skipped")
        verdict.equal(skipped[0], window[0] is spoilt, "the infinite input causes the skip")
    verdict.same_state(subject.state(recomputed), subject.state(plain), "state after good, overflow, good")


def steep(by: float = 2.0**110) -> Model:
    """Return two layers that undo each other: values stay near 1, and gradients grow by the second layer's factor."""
    eye = np.eye(4)
    layers = (Dense(4, bias=False), Dense(4, bias=False), Heads((Head("output", 4),)))
    starts = (("0.weight", eye / by), ("1.weight", eye * by), ("2.output.weight", eye))
    return Model("steep", layers, (4,), (("output", "squared_error"),), starts=starts)


@clause("recompute.with-scaling")
def test_overflow_only_in_first_segment(subject: Subject, verdict: Verdict, variant: str) -> None:
    batch = exact_batch(4, 4, 4)
    recipe = RECIPE.replace(scaling=DynamicScaling(initial=2.0**30))
    plain, recomputed = make_runs(subject, steep(), recipe, Recompute(2, variant=variant))
    before = recomputed.parameters()
    skipped = [run.update((batch,)).skipped for run in (plain, recomputed)]
    verdict.holds(skipped[0], "the plain run overflows and skips", skipped[0], True)
    verdict.holds(skipped[1], "the run with recomputation skips as well", skipped[1], True, "overflow-unseen")
    verdict.equal(recomputed.parameters(), before, "parameters after the skipped update", "parameters-moved")
    verdict.same_state(subject.state(recomputed), subject.state(plain), "state after the overflow")


@clause("recompute.evaluation-is-plain")
def test_evaluation_ignores_segments(subject: Subject, verdict: Verdict, variant: str) -> None:
    layers = (Dense(8), BatchNorm(), Activation("tanh"), Dropout(0.5), Dense(8), Dropout(0.5))
    model = Model("evaluated", (*layers, Heads((Head("output", 4),))), (8,), (("output", "squared_error"),))
    plain, recomputed = make_runs(subject, model, RECIPE, Recompute(2, variant=variant))
    before, inputs = subject.state(recomputed), exact_batch(6).inputs
    expected, measured = plain.predict(inputs), recomputed.predict(inputs)
    verdict.equal(measured, expected, "outputs of evaluation with recomputation", "evaluation-differs")
    verdict.same_state(subject.state(recomputed), before, "state after evaluation", "evaluation-leaves-trace")
    verdict.equal(recomputed.predict(inputs), expected, "outputs of a second evaluation", "evaluation-differs")
