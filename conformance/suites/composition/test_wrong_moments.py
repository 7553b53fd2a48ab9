"""Calls at unusual moments: a call raises, or later updates equal those of a run without the call."""

from pathlib import Path

import pytest

from conformance.checks.api import Subject, Verdict, clause, need, train
from fixtures.data import exact_batch
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, Adam, AdamW, DynamicScaling, Recipe, Recompute, Steps
from frameworks.contract import Capability, Trainer, Unsupported

SCALING = DynamicScaling(initial=2.0**10, interval=3)
RECIPES: dict[str, Recipe] = {
    "momentum": Recipe(SGD(2.0**-6, momentum=0.5)),
    "adam": Recipe(Adam(1e-3)),
    "adamw-scaled": Recipe(AdamW(1e-3, weight_decay=0.1), scaling=SCALING),
}
MIXED: dict[str, Recipe] = {
    "adamw-scaled": RECIPES["adamw-scaled"],
    "adam-bfloat16-recomputed": RECIPES["adam"].replace(precision=BFLOAT16, recompute=Recompute(2)),
    "momentum-float16-scaled-clipped": RECIPES["momentum"].replace(precision=FLOAT16, scaling=SCALING, clip=0.25),
}
OLDER: dict[str, tuple[Recipe, int]] = {
    "of-fewer-updates": (RECIPES["adam"], 1),
    "of-more-updates": (RECIPES["adam"], 3),
    "with-more-parts": (RECIPES["adam"].replace(scaling=SCALING, schedule=Steps((1,), (1.0, 0.5))), 1),
    "with-fewer-parts": (Recipe(SGD(2.0**-6)), 1),
}
"""By case, the recipe of a run and the number of its updates before an older save."""


@clause("accumulation.empty-window")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("updates", [0, 2], ids=["at-once", "after-updates"])
def test_empty_window_is_refused_or_ignored(subject: Subject, verdict: Verdict, recipe: Recipe, updates: int) -> None:
    interrupted, plain = (subject.trainer(exact_linear(), recipe) for _ in range(2))
    for run in (interrupted, plain):
        train(run, 0, updates)
    verdict.observe("empty window", answer(interrupted))
    for number in range(3):
        what = f"{number} updates after the empty window"
        verdict.same_state(interrupted.parameters(), plain.parameters(), f"parameters {what}", "empty-window-counts")
        for run in (interrupted, plain):
            train(run, updates + number, updates + number + 1)


def answer(trainer: Trainer) -> str:
    """End a window without a micro-batch; return the type of the exception, or "done"."""
    try:
        trainer.apply()
    except (RuntimeError, ValueError, TypeError, AssertionError, Unsupported) as error:
        return type(error).__name__
    return "done"


@clause("accumulation.evaluation-changes-nothing")
@pytest.mark.parametrize("recipe", MIXED.values(), ids=MIXED)
def test_predictions_between_backward_and_update(subject: Subject, verdict: Verdict, recipe: Recipe) -> None:
    evaluated, plain = (subject.trainer(exact_stack(8, 2), recipe.replace(accumulation=2)) for _ in range(2))
    for update in range(2):
        batch = exact_batch(8, seed=update)
        for run in (evaluated, plain):
            for part in batch.into(2):
                run.accumulate(part, 8)
                if run is evaluated:
                    run.predict(100.0 * batch.inputs)
            run.apply()
        what = f"training state after update {update + 1}, with predictions in its window"
        verdict.same_state(subject.state(evaluated), subject.state(plain), what, "not-training")


@clause("resume.bit-identical")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_load_inside_window_replaces_window(subject: Subject, verdict: Verdict, tmp_path: Path, recipe: Recipe) -> None:
    through, resumed = (subject.trainer(exact_linear(), recipe.replace(accumulation=2)) for _ in range(2))
    through.update(exact_batch(8).into(2))
    through.save(tmp_path)
    resumed.accumulate(exact_batch(4, seed=9), 8)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(through), "training state right after the load")
    for seed in (1, 2):
        for run in (through, resumed):
            run.update(exact_batch(8, seed=seed).into(2))
    verdict.same_state(subject.state(resumed), subject.state(through), "training state two updates after the load")


@clause("resume.live-state")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_state_taken_inside_window_is_not_shared(subject: Subject, verdict: Verdict, recipe: Recipe) -> None:
    need(subject, Capability.LIVE_STATE)
    source, taker, plain = (subject.trainer(exact_linear(), recipe.replace(accumulation=2)) for _ in range(3))
    first, second = exact_batch(8, seed=1).into(2)
    for run in (source, plain):
        run.update(exact_batch(8).into(2))
        run.accumulate(first, 8)
    try:
        taker.take(source)
    except (RuntimeError, ValueError) as error:
        verdict.observe("a state inside a window", type(error).__name__)
    else:
        taker.accumulate(exact_batch(4, seed=9), 8)
    for run in (source, plain):
        run.accumulate(second, 8)
        run.apply()
    measured, expected = subject.state(source), subject.state(plain)
    verdict.same_state(
        measured, expected, "training state of the run that gave its state inside the window", "shared-state"
    )


@clause("resume.bit-identical")
@pytest.mark.parametrize("older", OLDER)
def test_save_replaces_older_checkpoint(subject: Subject, verdict: Verdict, tmp_path: Path, older: str) -> None:
    (other, updates), recipe = OLDER[older], RECIPES["adam"]
    former, through, resumed = (subject.trainer(exact_linear(), variant) for variant in (other, recipe, recipe))
    train(former, 0, updates)
    former.save(tmp_path)
    train(through, 3, 5)
    try:
        through.save(tmp_path)
    except (OSError, RuntimeError, ValueError) as error:
        verdict.observe("second save", type(error).__name__)
        return
    resumed.restore(tmp_path)
    for what in ("right after the load", "an update later"):
        measured, expected = subject.state(resumed), subject.state(through)
        verdict.same_state(measured, expected, f"training state {what}", "older-save")
        for run in (through, resumed):
            train(run, 5, 6)
