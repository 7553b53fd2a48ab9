"""Models whose layers share weights, and models with an operation whose backward pass the user wrote."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from fixtures.arrays import Array
from fixtures.model import SCALE, Batch, FunctionUse, Model
from fixtures.models import make_reused_dense, tied_embedding, user_function
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, Adam, Precision, Recipe, Recompute, StaticScaling
from frameworks.contract import Capability
from frameworks.ways import Way

RATE = 2.0**-4
PLAIN = Recipe(SGD(RATE))
SAMPLES = 4
TECHNIQUES: dict[str, Recipe] = {
    "float32": PLAIN,
    "float32-accumulated-recomputed": PLAIN.replace(accumulation=2, recompute=Recompute(2)),
    "float16-scaled-accumulated": PLAIN.replace(precision=FLOAT16, scaling=StaticScaling(2.0**8), accumulation=2),
    "bfloat16-recomputed": PLAIN.replace(precision=BFLOAT16, recompute=Recompute(1)),
}
"""Recipes by name. One recomputed segment contains both uses of a shared layer; two segments contain one use each."""
SHARED = {"reused": make_reused_dense, "tied": tied_embedding}
each_shared = pytest.mark.parametrize("fixture", SHARED)
USES: dict[str, FunctionUse] = {
    "all-inputs": FunctionUse(),
    "first-frozen": FunctionUse((False, True, True)),
    "others-frozen": FunctionUse((True, False, False)),
    "first-output": FunctionUse((True, True, False), outputs="y"),
    "second-output": FunctionUse((True, True, False), outputs="z"),
    "twice": FunctionUse((False, True, False), times=2),
}
"""Uses, by name, of an operation with three inputs and two outputs."""


def signs(shape: tuple[int, ...], *seed: int) -> Array:
    """Return an array of random ones and minus ones."""
    return np.random.default_rng([*seed]).choice([-1.0, 1.0], shape)


def batch_of(model: Model, seed: int = 0) -> Batch:
    """Return inputs of the exact models: ids, or vectors whose elements differ in magnitude, from 1/4 to 1."""
    width = model.heads.heads[0].units
    targets = {"output": np.zeros((SAMPLES, width), np.float32)}
    if model.integer_inputs:
        return Batch(np.random.default_rng([seed]).integers(0, width, (SAMPLES, 1)), targets)
    magnitudes = np.where(np.arange(width) % 2, 1.0, 0.25)
    return Batch((signs((SAMPLES, width), seed) * magnitudes).astype(np.float32), targets)


def expected_gradients(model: Model, batch: Batch) -> dict[str, Array]:
    """Return float64 gradients of the mean squared output over items and units, summed by hand over the uses."""
    weights = {name: value.astype(np.float64) for name, value in model.weights(0).items()}
    first, x = weights["0.weight"], batch.inputs
    if model.name == "tied":
        rows = first[x[:, 0]]
        error = 2.0 * rows @ first.T / (len(x) * len(first))
        as_table = np.zeros_like(first)
        np.add.at(as_table, x[:, 0], error @ first)
        return {"0.weight": as_table + error.T @ rows}
    head, hidden = weights["2.output.weight"], x @ first
    middle = hidden @ first if model.name == "reused" else hidden * hidden
    error = 2.0 * middle @ head / (len(x) * head.shape[1])
    back = error @ head.T
    if model.name == "reused":
        inner = back @ first.T
        shared = {"0.weight": x.T @ inner + hidden.T @ back, "0.bias": inner.sum(0) + back.sum(0)}
    else:
        inner = back * np.clip(2.0 * hidden, -1.0, 1.0)
        shared = {"0.weight": x.T @ inner, "0.bias": inner.sum(0)}
    return shared | {"2.output.weight": middle.T @ error, "2.output.bias": error.sum(0)}


def make_recipe(subject: Subject, model: Model, techniques: str) -> Recipe:
    """Return the recipe; a model of ids gets a recomputation variant that needs no input with a gradient."""
    recipe = TECHNIQUES[techniques]
    need(subject, *((Capability.ACCUMULATION,) if recipe.accumulation > 1 else ()))
    if recipe.recompute is None or not model.integer_inputs:
        return recipe
    offered = subject.framework.recompute_variants()
    variant = next((name for name in offered if name not in subject.conventions.gradient_input), None)
    return recipe.replace(recompute=replace(recipe.recompute, variant=variant))


def trains_exactly(subject: Subject, verdict: Verdict, model: Model, recipe: Recipe) -> None:
    """Compare the gradients of a window, and without recomputation the updated weights, with those by hand.

    Signs of zeros are free.
    """
    batch = batch_of(model, subject.seed)
    trainer, window = subject.trainer(model, recipe), batch.into(recipe.accumulation)
    expected, before = expected_gradients(model, batch), trainer.parameters()
    measured = {name: value.astype(np.float64) + 0.0 for name, value in trainer.gradients(window).items()}
    verdict.same_state(
        measured, {name: value + 0.0 for name, value in expected.items()}, "gradients", "gradient-differs"
    )
    if recipe.recompute is not None:
        return
    trainer.update(window)
    after = {name: (value - RATE * expected[name] + 0.0).astype(value.dtype) for name, value in before.items()}
    measured = {name: value + value.dtype.type(0.0) for name, value in trainer.parameters().items()}
    verdict.same_state(measured, after, "parameters after one update", "update-differs")


@clause("composition.shared-weights")
@pytest.mark.parametrize("techniques", TECHNIQUES)
@each_shared
def test_shared_weight_gradients_are_summed(subject: Subject, verdict: Verdict, fixture: str, techniques: str) -> None:
    model = SHARED[fixture]()
    trains_exactly(subject, verdict, model, make_recipe(subject, model, techniques))


@clause("composition.shared-weights")
@each_shared
def test_weights_stay_shared_after_restore(subject: Subject, verdict: Verdict, tmp_path: Path, fixture: str) -> None:
    model = SHARED[fixture]()
    through, resumed = (subject.trainer(model, Recipe(Adam(2.0**-3))) for _ in range(2))
    through.update((batch_of(model, 1),))
    through.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(through), "training state right after the load")
    for run in (through, resumed):
        run.update((batch_of(model, 2),))
    verdict.same_state(subject.state(resumed), subject.state(through), "training state after one more update")
    measured, expected = (run.predict(batch_of(model, 3).inputs) for run in (resumed, through))
    verdict.same_state(measured, expected, "outputs after one more update", "not-shared")


@clause("composition.shared-weights")
def test_weights_stay_shared_after_load_by_each_way(
    subject: Subject, verdict: Verdict, tmp_path: Path, file_way: Way
) -> None:
    model = tied_embedding()
    need(subject, Capability.TIED_WEIGHTS)
    through, resumed = (subject.trainer(model, Recipe(Adam(2.0**-3), ways=(str(file_way),))) for _ in range(2))
    through.update((batch_of(model, 1),))
    through.save(tmp_path)
    resumed.restore(tmp_path)
    for run in (through, resumed):
        run.update((batch_of(model, 2),))
    what = f"training state an update after a load by {file_way}"
    verdict.same_state(subject.state(resumed), subject.state(through), what, "not-shared")
    measured, expected = (run.predict(batch_of(model, 3).inputs) for run in (resumed, through))
    verdict.same_state(measured, expected, f"outputs an update after a load by {file_way}", "not-shared")


@clause("composition.user-function")
@pytest.mark.parametrize("techniques", [name for name in TECHNIQUES if not name.startswith("bfloat16")])
def test_custom_gradient_is_used(subject: Subject, verdict: Verdict, function_way: str | None, techniques: str) -> None:
    model = user_function(function_way)
    trains_exactly(subject, verdict, model, make_recipe(subject, model, techniques))


@clause("composition.user-function")
@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.format)
def test_custom_function_computes_in_documented_format(
    subject: Subject, verdict: Verdict, function_way: str | None, precision: Precision
) -> None:
    need(subject, Capability.TRACE)
    model = user_function(function_way)
    trace = subject.trainer(model, PLAIN.replace(precision=precision)).trace(batch_of(model))
    input_format = trace.outputs["0"].dtype.name
    expected = {"input": input_format, "float32": "float32"}[subject.framework.function_ways()[function_way or ""]]
    verdict.equal(
        trace.outputs["1"].dtype.name, expected, f"format of the function's output for {input_format}", "format"
    )


def judge_use(subject: Subject, verdict: Verdict, use: FunctionUse, variant: str | None = None) -> None:
    """Check the gradients of powers of two, and which inputs the backward pass reports as needing a gradient."""
    need(subject, Capability.FUNCTION_USES)
    a, b, c = (np.exp2([first, -1.0, 3.0]).astype(np.float32) for first in (0.0, 1.0, 2.0))
    result = subject.framework.function_used(use, (a, b, c), variant)
    if result.asked is not None:
        verdict.equal(result.asked, (use.needs,) * use.times, "inputs that need a gradient, as answered", "answer")
    y, z = (float(name in use.outputs) for name in "yz")
    every = (2.0 * SCALE * y * b, SCALE * y * a + z, np.full_like(c, z))
    for name, gradient, needed, expected in zip("abc", result.gradients, use.needs, every, strict=True):
        measured, wanted = (None if array is None else array.tolist() for array in (gradient, use.times * expected))
        verdict.equal(measured, wanted if needed else None, f"gradient of {name}", "gradient-differs")


@clause("composition.user-function")
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16-scope"])
@pytest.mark.parametrize("use", USES)
def test_custom_function_input_gradients(subject: Subject, verdict: Verdict, use: str, low: bool) -> None:
    need(subject, Capability.FUNCTION_USES)
    with subject.framework.autocast(BFLOAT16) if low else nullcontext():
        judge_use(subject, verdict, USES[use])


@clause("composition.user-function")
@pytest.mark.parametrize("use", USES)
def test_custom_function_input_gradients_with_recomputation(
    subject: Subject, verdict: Verdict, use: str, variant: str
) -> None:
    judge_use(subject, verdict, USES[use], variant)
