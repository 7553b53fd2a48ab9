"""Parameters that are not trained."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from conformance.checks import combinations
from conformance.checks.api import Subject, Verdict, clause, full, need, spike_gradients, supports
from conformance.checks.combinations import Row
from conformance.techniques.optimizers import judge_updates
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear
from fixtures.optimizers import SGD, Adagrad, AdamW, Optimizer
from fixtures.recipe import BFLOAT16, FLOAT16, MASTERED, DynamicScaling, Recipe, Recompute, Steps
from frameworks.contract import Capability, Trainer, needs
from frameworks.ways import Way

SIZES = (8, 4)
MODEL = Row((), Recipe(), dropout=False, norm=False).model
PLACES: dict[str, tuple[str, ...]] = {
    "first-layer": ("0.weight", "0.bias"),
    "inner-bias": ("2.bias",),
    "inner-layer": ("2.weight", "2.bias"),
    "head": ("4.output.weight", "4.output.bias"),
}
"""Frozen parameters of the model, by the name of the case."""
RATE = 2.0**-5
MOMENTUM = SGD(RATE, momentum=0.5)
ADAMW = AdamW(2.0**-3, epsilon=1.0, weight_decay=0.25)
OPTIMIZERS: dict[str, tuple[Optimizer, str]] = {
    "adamw": (AdamW(RATE, beta1=0.5, beta2=0.75, epsilon=2.0**-10, weight_decay=0.25), "inner-bias"),
    "adagrad": (Adagrad(RATE, epsilon=2.0**-10, initial=0.25), "head"),
}
SCALING = DynamicScaling(initial=16.0, interval=2)
TECHNIQUES: dict[str, tuple[str, Optimizer, dict[str, Any]]] = {
    "clipped": ("first-layer", ADAMW, {"clip": 0.5, "schedule": Steps((1, 3), (1.0, 0.5, 0.25))}),
    "scaled": ("inner-bias", MOMENTUM, {"precision": FLOAT16, "scaling": SCALING, "accumulation": 2, "average": 0.5}),
    "grouped": ("head", ADAMW, {"precision": BFLOAT16, "recompute": Recompute(2), "groups": 2}),
    "masters": ("inner-layer", ADAMW, {"precision": MASTERED[1], "accumulation": 2}),
}
"""Case of frozen parameters, optimizer, and recipe fields, which are used as far as the framework declares them."""
_PAUSED = ("0.output.weight",)
SCRIPT: tuple[tuple[tuple[str, ...], float], ...] = (((), 1.0), ((), 0.5), (_PAUSED, 2.0), (_PAUSED, 0.5), ((), 0.25))
"""Frozen parameters of each update, and the value of all gradients in it."""


def constants(trainer: Trainer, names: Collection[str]) -> dict[str, Array]:
    """Return these parameters and their optimizer state, without averages, which may follow any parameter."""
    arrays = trainer.optimizer_state() | {f"parameter/{name}": value for name, value in trainer.parameters().items()}
    return {name: value for name, value in arrays.items() if name.partition("/")[2] in names and name[:8] != "average/"}


@clause("optimizer.frozen")
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_other_parameters_train_beside_frozen_ones(
    subject: Subject, verdict: Verdict, tmp_path: Path, technique: str
) -> None:
    part, optimizer, changes = TECHNIQUES[technique]
    recipe = Recipe(optimizer, frozen=PLACES[part])
    need(subject, *needs(recipe))
    for field, value in changes.items():
        larger = recipe.replace(**{field: value})
        recipe = larger if supports(subject.framework, *needs(larger)) else recipe
    row = Row((("technique", technique),), recipe, dropout=False, norm=False)
    combinations.compare(subject, verdict, row, tmp_path)


@clause("optimizer.frozen")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_parameter_has_no_gradient_and_no_moments(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    chosen, part = OPTIMIZERS[optimizer]
    recipe = Recipe(chosen, frozen=PLACES[part])
    trainer = subject.trainer(MODEL, recipe)
    before = constants(trainer, recipe.frozen)
    measured = sorted(trainer.gradients((exact_batch(16, *SIZES),)))
    trained = sorted(name for name in MODEL.parameter_shapes() if name not in recipe.frozen)
    verdict.equal(measured, trained, "parameters with a gradient", "frozen-gradient")
    trainer.update((exact_batch(16, *SIZES),))
    trainer.apply_gradients(full(trainer, 1.0))
    verdict.same_state(constants(trainer, recipe.frozen), before, "constants and their moments", "frozen-moved")
    judge_updates(subject, verdict, MODEL, recipe, (0, -2, 0))


@clause("optimizer.frozen")
@pytest.mark.parametrize("part", ["first-layer", "inner-bias"])
def test_frozen_parameter_is_not_in_gradient_norm(subject: Subject, verdict: Verdict, part: str) -> None:
    judge_updates(subject, verdict, MODEL, Recipe(SGD(RATE), clip=0.25, frozen=PLACES[part]), (0, -4, 2))


@clause("optimizer.frozen")
def test_nonfinite_gradient_of_frozen_parameter_is_no_overflow(subject: Subject, verdict: Verdict) -> None:
    recipe = Recipe(SGD(RATE), scaling=SCALING, frozen=PLACES["first-layer"])
    trainer = subject.trainer(MODEL, recipe)
    update = trainer.apply_gradients(spike_gradients(trainer, math.inf, recipe.frozen[0], 1.0))
    verdict.equal((update.skipped, update.scale_after), (False, 16.0), "skip and scale", "frozen-overflow")
    update = trainer.apply_gradients(spike_gradients(trainer, math.inf, PLACES["head"][0], 1.0))
    verdict.equal((update.skipped, update.scale_after), (True, 8.0), "skip and scale of an overflow", "overflow-missed")


@clause("optimizer.frozen")
def test_frozen_run_is_saved_by_each_way(subject: Subject, verdict: Verdict, tmp_path: Path, file_way: Way) -> None:
    recipe = Recipe(ADAMW, frozen=PLACES["inner-layer"], ways=(str(file_way),))
    through, resumed = (subject.trainer(MODEL, recipe) for _ in range(2))
    through.apply_gradients(full(through, 1.0))
    through.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(through), f"training state after a load by {file_way}")
    for run in (through, resumed):
        run.apply_gradients(full(run, -0.5))
    what = f"training state an update after a load by {file_way}"
    verdict.same_state(subject.state(resumed), subject.state(through), what)


@clause("optimizer.frozen-later")
def test_freezing_later_keeps_moments(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    need(subject, Capability.FREEZE)
    model, recipe = exact_linear(), Recipe(SGD(2.0**-6, momentum=0.5))
    run, exact = run_with_pause(subject, verdict, tmp_path, model, recipe), subject.oracle(model, recipe)
    for frozen, value in SCRIPT:
        exact.freeze(frozen)
        exact.apply_gradients(full(run, value))
    measured = run.parameters()
    expected = {name: value.astype(measured[name].dtype) for name, value in exact.parameters().items()}
    verdict.same_state(measured, expected, "parameters after a pause of one of them", "pause-differs")


@clause("optimizer.frozen-later")
def test_freezing_later_is_saved_by_each_way(subject: Subject, verdict: Verdict, tmp_path: Path, file_way: Way) -> None:
    need(subject, Capability.FREEZE)
    run_with_pause(subject, verdict, tmp_path, exact_linear(), Recipe(ADAMW, ways=(str(file_way),)))


def run_with_pause(subject: Subject, verdict: Verdict, folder: Path, model: Model, recipe: Recipe) -> Trainer:
    """Run the script; save the run while a parameter is frozen, and continue in a new run, which is returned."""
    through, resumed = (subject.trainer(model, recipe) for _ in range(2))
    for frozen, value in SCRIPT[:3]:
        before = constants(through, frozen)
        through.freeze(frozen)
        through.apply_gradients(full(through, value))
        verdict.same_state(constants(through, frozen), before, "a frozen parameter and its moments", "frozen-moved")
    through.save(folder)
    resumed.freeze(_PAUSED)
    resumed.restore(folder)
    verdict.same_state(subject.state(resumed), subject.state(through), "training state right after the load")
    for count, (frozen, value) in enumerate(SCRIPT[3:], start=1):
        for run in (through, resumed):
            run.freeze(frozen)
            run.apply_gradients(full(run, value))
        verdict.same_state(subject.state(resumed), subject.state(through), f"training state {count} updates later")
    return resumed
