"""The exponential moving average of the weights: updates, format, and use in evaluation."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.checks.api import Subject, Verdict, clause, full, spike_gradients, train
from conformance.search import explore
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.models import digits_mlp, exact_linear, exact_stack, scalar
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, MASTERED, SGD, DynamicScaling, Precision, Recipe
from frameworks.contract import Trainer

RECIPE = Recipe(SGD(2.0**-4), average=0.5)
SCALED = RECIPE.replace(scaling=DynamicScaling(initial=2.0**10))
MOVES = ("scaler/", "random/")
LEVEL = pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16, *MASTERED], ids=lambda p: p.label)


def averages(trainer: Trainer) -> dict[str, Array]:
    """Return the average of every parameter by canonical name."""
    state = trainer.optimizer_state()
    return {name: state[f"average/{name}"] for name in trainer.parameters()}


def update_average(average: dict[str, Array] | None, weights: dict[str, Array], decay: float) -> dict[str, Array]:
    """Return the next average by the closed form, in the weights' formats; exact if weights and decay need few bits."""
    if average is None:
        return weights
    wide = {name: (average[name].astype(np.float64), weight.astype(np.float64)) for name, weight in weights.items()}
    return {name: (decay * a + (1.0 - decay) * w).astype(weights[name].dtype) for name, (a, w) in wide.items()}


@dataclass(frozen=True)
class Course:
    """A sequence of gradients, each constant over all elements; a non-finite gradient skips its update."""

    decay: float
    momentum: float
    values: tuple[float, ...]


def courses() -> st.SearchStrategy[Course]:
    """Return a strategy of short courses whose gradients need few bits."""
    finite = st.sampled_from([-0.25, -0.125, 0.0, 0.125, 0.25])
    values = st.lists(st.one_of(finite, finite, st.sampled_from([math.inf, math.nan])), min_size=1, max_size=6)
    return st.builds(Course, st.sampled_from([0.25, 0.5, 0.75]), st.sampled_from([0.0, 0.5]), values.map(tuple))


@clause("master.average-follows-updates")
@explore(courses(), examples=8)
def test_average_matches_closed_form_over_applied_updates(subject: Subject, verdict: Verdict, case: Course) -> None:
    recipe = SCALED.replace(optimizer=SGD(2.0**-4, case.momentum), average=case.decay)
    trainer, expected = subject.trainer(exact_linear(), recipe), None
    for value in case.values:
        trainer.apply_gradients(full(trainer, value))
        if math.isfinite(value):
            expected = update_average(expected, trainer.master_parameters(), case.decay)
    if expected is not None:
        verdict.same_state(averages(trainer), expected, "average after all updates", "average-differs")


@clause("master.average-follows-updates")
@LEVEL
def test_average_uses_updated_weights(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer, expected = subject.trainer(exact_linear(), RECIPE.replace(precision=precision)), None
    for step in range(4):
        trainer.apply_gradients(full(trainer, 2.0 ** -(step + 2)))
        expected = update_average(expected, trainer.master_parameters(), 0.5)
        verdict.same_state(averages(trainer), expected, f"average after update {step}", "average-differs")


@clause("master.average-keeps-precision")
@LEVEL
def test_slow_average_keeps_small_steps(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(SGD(0.5), precision, average=1.0 - 2.0**-10))
    trainer.apply_gradients(full(trainer, 0.0))
    trainer.apply_gradients(full(trainer, -1.0))
    expected = np.full((1, 1), 1.0 + 2.0**-11, np.float32)
    verdict.equal(averages(trainer)["0.output.weight"], expected, "average of 1 and 1.5", "average-rounded")


@clause("scaling.skip-is-atomic")
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
def test_skipped_update_does_not_change_average(subject: Subject, verdict: Verdict, bad: float) -> None:
    trainer = subject.trainer(exact_linear(), SCALED)
    for _ in range(2):
        trainer.apply_gradients(full(trainer, 2.0**-3))
    before = subject.state(trainer)
    trainer.apply_gradients(spike_gradients(trainer, bad, base=1.0))
    verdict.same_state(subject.state(trainer), before, "training state (excluding scaler)", ignoring=("scaler/",))


@clause("scaling.step-count-follows-updates")
def test_average_ignores_skipped_updates(subject: Subject, verdict: Verdict) -> None:
    skipping, plain = (subject.trainer(exact_linear(), SCALED) for _ in range(2))
    for value in (math.inf, 2.0**-3, -(2.0**-2), math.nan, 2.0**-4):
        for run in (skipping, plain) if math.isfinite(value) else (skipping,):
            run.apply_gradients(full(run, value))
    verdict.same_state(
        subject.state(skipping), subject.state(plain), "state after three applied updates", ignoring=MOVES
    )


@clause("accumulation.once-per-window")
def test_average_is_updated_once_per_window(subject: Subject, verdict: Verdict) -> None:
    whole, parts = (subject.trainer(exact_linear(), RECIPE.replace(accumulation=k)) for k in (1, 4))
    for value in (2.0**-3, -(2.0**-2), 2.0**-4):
        whole.apply_gradients(full(whole, value))
        parts.apply_gradients(*[full(parts, value)] * 4)
    verdict.same_state(averages(parts), averages(whole), "average after three windows of four", "average-differs")


@clause("accumulation.nothing-before-boundary")
def test_average_is_constant_within_window(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(exact_linear(), RECIPE.replace(accumulation=4))
    train(trainer, 0, 2, 4)
    before = subject.state(trainer)
    for batch in exact_batch(8, seed=2).into(4)[:3]:
        trainer.accumulate(batch, 8)
    inside = ("accumulator/", "random/")
    verdict.same_state(subject.state(trainer), before, "training state (excluding accumulator)", ignoring=inside)


@clause("accumulation.evaluation-changes-nothing")
def test_evaluation_with_average_does_not_change_training_state(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(digits_mlp((16,)), Recipe(SGD(0.1), average=0.75))
    for start in (0, 8, 16):
        trainer.update((digits_batch(8, start),))
    before = subject.state(trainer)
    trainer.predict_averaged(digits_batch(4).inputs)
    verdict.same_state(subject.state(trainer), before, "training state after an evaluation with the average")


@clause("master.average-is-evaluated")
@LEVEL
def test_evaluation_with_average_matches_averaged_model(
    subject: Subject, verdict: Verdict, precision: Precision
) -> None:
    model, recipe = exact_linear(), RECIPE.replace(precision=precision)
    trainer = subject.trainer(model, recipe)
    train(trainer, 0, 3)
    inputs = exact_batch(4, seed=3).inputs
    of_average = subject.trainer(model, recipe.replace(average=None), averages(trainer)).predict(inputs)
    of_weights = subject.trainer(model, recipe.replace(average=None), trainer.master_parameters()).predict(inputs)
    verdict.differs(of_weights, of_average, "the average is not the weights")
    verdict.same_state(trainer.predict(inputs), of_weights, "prediction with the weights", "wrong-weights")
    verdict.same_state(trainer.predict_averaged(inputs), of_average, "prediction with the average", "wrong-weights")


@clause("resume.bit-identical")
def test_average_resumes(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    recipe = Recipe(SGD(2.0**-6, momentum=0.5), average=0.75)
    through, saved, resumed = (subject.trainer(exact_stack(), recipe) for _ in range(3))
    train(through, 0, 6)
    train(saved, 0, 3)
    saved.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(saved), "state right after the load")
    train(resumed, 3, 6)
    verdict.same_state(subject.state(resumed), subject.state(through), "state after three more updates")
