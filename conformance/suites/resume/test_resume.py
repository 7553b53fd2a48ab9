"""Resume: a restored run continues like one that was never interrupted."""

import math
from pathlib import Path
from typing import get_args

import pytest

from conformance.checks import subprocesses
from conformance.checks.api import Subject, Verdict, clause, full, need, spike_gradients, supports, train
from fixtures.data import digits_batch, exact_batch
from fixtures.models import digits_convolution, dropout_probe, exact_linear, exact_stack, scalar, two_heads
from fixtures.recipe import MASTERED, SGD, Adam, AdamW, DynamicScaling, Recipe, Recompute, Steps
from frameworks.contract import Capability, LoadOrder, RowOrder, Trainer

ADAM = Recipe(Adam(1e-3))
SCALING = DynamicScaling(initial=2.0**10, interval=3)
TECHNIQUES: dict[str, Recipe] = {
    "momentum": Recipe(SGD(2.0**-6, momentum=0.5)),
    "adam": ADAM,
    "adamw": Recipe(AdamW(1e-3, weight_decay=0.01)),
    "scaling": ADAM.replace(scaling=SCALING),
    "accumulation": ADAM.replace(accumulation=2),
    "recomputation": ADAM.replace(recompute=Recompute(2)),
    "schedule": ADAM.replace(schedule=Steps((2, 6), (1.0, 0.5, 0.25))),
    **{f"masters-{p.format}": ADAM.replace(precision=p) for p in MASTERED},
}


FRESH: dict[str, Recipe] = {
    f"{optimizer}-{scaled}-{rate}": TECHNIQUES[optimizer].replace(scaling=scaling, schedule=schedule)
    for optimizer in ("momentum", "adam")
    for scaled, scaling in (("unscaled", None), ("scaled", SCALING))
    for rate, schedule in (("constant", None), ("scheduled", Steps((1, 2), (1.0, 0.5, 0.25))))
}
"""Recipes of runs that are saved before their first update."""
AGAIN: dict[str, Recipe] = {
    "momentum-scheduled": TECHNIQUES["momentum"].replace(schedule=TECHNIQUES["schedule"].schedule),
    "adam-averaged": ADAM.replace(average=0.75),
    "adam-scaled": ADAM.replace(scaling=SCALING),
    "momentum-recomputed": TECHNIQUES["momentum"].replace(recompute=Recompute(2)),
}


@clause("resume.bit-identical")
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_resumed_run_matches_uninterrupted_run(
    subject: Subject, verdict: Verdict, tmp_path: Path, technique: str
) -> None:
    recipe = TECHNIQUES[technique]
    through, resumed = (subject.trainer(exact_stack(), recipe) for _ in range(2))
    train(through, 0, 4, recipe.accumulation)
    through.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(through), "training state right after the load")
    for run in (through, resumed):
        train(run, 4, 14, recipe.accumulation)
    verdict.same_state(subject.state(resumed), subject.state(through), "training state after ten more updates")


@clause("resume.save-has-no-side-effects")
@pytest.mark.parametrize("recipe", FRESH.values(), ids=FRESH)
def test_save_before_first_update_has_no_side_effects(
    subject: Subject, verdict: Verdict, tmp_path: Path, recipe: Recipe
) -> None:
    saved, plain = (subject.trainer(exact_linear(), recipe) for _ in range(2))
    before = subject.state(saved)
    saved.save(tmp_path)
    verdict.same_state(subject.state(saved), before, "training state after a save before the first update")
    for number in range(1, 4):
        for run in (saved, plain):
            run.update((exact_batch(8, seed=number),))
        what = f"training state {number} updates after a save before the first one"
        verdict.same_state(subject.state(saved), subject.state(plain), what, "run-differs")


@clause("resume.bit-identical")
@pytest.mark.parametrize("recipe", AGAIN.values(), ids=AGAIN)
def test_run_resumed_after_every_update_matches_uninterrupted_run(
    subject: Subject, verdict: Verdict, tmp_path: Path, recipe: Recipe
) -> None:
    model = exact_stack(8, 3, dropout=0.5)
    through, resumed = (subject.trainer(model, recipe) for _ in range(2))
    for number in range(6):
        if number:
            resumed.save(tmp_path / str(number))
            resumed = subject.trainer(model, recipe)
            resumed.restore(tmp_path / str(number))
        for run in (through, resumed):
            train(run, number, number + 1)
        measured, expected = subject.state(resumed), subject.state(through)
        verdict.same_state(measured, expected, f"training state after update {number}, resumed before each")


@clause("resume.bit-identical")
@pytest.mark.parametrize("recipe", FRESH.values(), ids=FRESH)
def test_run_saved_before_first_update_resumes(
    subject: Subject, verdict: Verdict, tmp_path: Path, recipe: Recipe
) -> None:
    plain, resumed = (subject.trainer(exact_linear(), recipe) for _ in range(2))
    subject.trainer(exact_linear(), recipe).save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(plain), "training state right after the load")
    for number in range(1, 4):
        for run in (resumed, plain):
            run.update((exact_batch(8, seed=number),))
        verdict.same_state(
            subject.state(resumed), subject.state(plain), f"training state {number} updates after the load"
        )


@clause("resume.bit-identical")
def test_two_optimizers_resume(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    recipe = ADAM.replace(optimizers=2, scaling=SCALING)
    through, resumed = (subject.trainer(two_heads(), recipe) for _ in range(2))
    for value in (1.0, 0.5, 0.25):
        through.apply_gradients(full(through, value))
    through.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(subject.state(resumed), subject.state(through), "training state right after the load")
    for run in (through, resumed):
        for value in (0.5, math.inf, 1.0):
            run.apply_gradients(full(run, value))
    verdict.same_state(subject.state(resumed), subject.state(through), "training state after three more updates")


@clause("resume.save-has-no-side-effects")
def test_arrays_of_caller_are_not_aliased(subject: Subject, verdict: Verdict) -> None:
    parameters = subject.trainer(exact_linear(), ADAM).parameters()
    copies = {name: value.copy() for name, value in parameters.items()}
    trainer = subject.trainer(exact_linear(), ADAM, parameters)
    read = subject.state(trainer)
    before = {name: value.copy() for name, value in read.items()}
    trainer.apply_gradients(full(trainer, 1.0))
    verdict.differs(copies, trainer.parameters(), "parameters over an update")
    verdict.same_state(parameters, copies, "the arrays that the run was given, after an update", "shared-memory")
    verdict.same_state(read, before, "the arrays that were read, after an update", "shared-memory")


@clause("resume.bit-identical")
def test_run_resumes_in_new_process(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    k = 2 if supports(subject.framework, Capability.ACCUMULATION) else 1
    recipe = ADAM.replace(scaling=scaling_if(subject), accumulation=k, schedule=Steps((1, 4), (1.0, 0.5, 0.25)))
    windows = [exact_batch(8, 16, 1, seed=i).into(k) for i in range(5)]
    through = subject.trainer(dropout_probe(16), recipe)
    for window in windows[:2]:
        through.update(window)
    through.save(tmp_path / "run")
    states = [through.state()]
    for window in windows[2:]:
        through.update(window)
        states.append(through.state())
    framework, completed = subprocesses.same_framework(subject), subject.complete_recipe(recipe)
    task = subprocesses.ResumeTask(*framework, dropout_probe(16), completed, tmp_path / "run", tuple(windows[2:]))
    restored = subprocesses.run_in_new_process(task, tmp_path / "run")
    for index, (measured, expected) in enumerate(zip(restored, states, strict=True)):
        verdict.same_state(measured, expected, f"training state {index} updates after the load", "new-process-differs")


@clause("resume.scaler-state")
def test_scaler_state_resumes(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    recipe = Recipe(SGD(2.0**-6), scaling=SCALING)
    through, saved, resumed = (subject.trainer(scalar(), recipe) for _ in range(3))
    script = [0.0, 0.0, math.inf, 0.0, 0.0, 0.0, math.nan, 0.0]
    expected = [step(through, value) for value in script]
    for value in script[:5]:
        step(saved, value)
    saved.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(resumed.scaler_state(), saved.scaler_state(), "scaler right after the load")
    verdict.equal([step(resumed, value) for value in script[5:]], expected[5:], "scale and skips after the load")


def step(trainer: Trainer, value: float) -> tuple[float, bool]:
    """Apply gradients of `value`; return the scale after the update and whether it was skipped."""
    update = trainer.apply_gradients(spike_gradients(trainer, value) if value else full(trainer, 2.0**-6))
    return update.scale_after, update.skipped


@clause("resume.load-has-no-side-effects")
def test_load_restores_saved_state_only(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    trainer = subject.trainer(digits_convolution(0.25, 2), Recipe(Adam(), scaling=scaling_if(subject)))
    batch = digits_batch(8, image=True)
    trainer.update((batch,))
    trainer.save(tmp_path)
    before = subject.state(trainer)
    for _ in range(2):
        trainer.restore(tmp_path)
        verdict.same_state(subject.state(trainer), before, "training state after loading")
        trainer.update((batch,))


def scaling_if(subject: Subject) -> DynamicScaling | None:
    """Return dynamic scaling if the framework has it, else None."""
    return SCALING if supports(subject.framework, Capability.DYNAMIC_SCALING) else None


@clause("resume.save-has-no-side-effects")
@pytest.mark.parametrize("k", [1, 2], ids=["between-windows", "inside-a-window"])
def test_save_has_no_side_effects(subject: Subject, verdict: Verdict, tmp_path: Path, k: int) -> None:
    recipe = Recipe(Adam(), scaling=scaling_if(subject), accumulation=k)
    saved, plain = (subject.trainer(digits_convolution(0.25, 2), recipe) for _ in range(2))
    parts = digits_batch(16, image=True).into(k)
    for run in (saved, plain):
        run.update(parts)
        for part in parts[1:]:
            run.accumulate(part, 16)
    before = subject.state(saved)
    saved.save(tmp_path)
    verdict.same_state(subject.state(saved), before, "training state after saving")
    for run in (saved, plain):
        run.accumulate(parts[0], 16)
        run.apply()
    verdict.same_state(subject.state(saved), subject.state(plain), "training state an update later", "run-differs")


def mid_window(subject: Subject, tmp_path: Path) -> tuple[Trainer, Trainer | None]:
    """Return a run through a window of four, and a run restored in its middle; None if saving there is refused."""
    recipe = Recipe(SGD(2.0**-4), accumulation=4, scaling=scaling_if(subject))
    through, saved, resumed = (subject.trainer(exact_linear(), recipe) for _ in range(3))
    parts = exact_batch(8).into(4)
    for run in (through, saved):
        for part in parts[:2]:
            run.accumulate(part, 8)
    try:
        saved.save(tmp_path)
        resumed.restore(tmp_path)
    except (RuntimeError, ValueError):
        return through, None
    for run in (through, resumed):
        for part in parts[2:]:
            run.accumulate(part, 8)
        run.apply()
    return through, resumed


@clause("resume.mid-window")
def test_save_inside_window_is_complete_or_refused(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    through, resumed = mid_window(subject, tmp_path)
    if resumed is None:
        verdict.holds(True, "the save was refused")
    else:
        measured, expected = subject.state(resumed), subject.state(through)
        verdict.same_state(measured, expected, "training state at the window's end", "partial-window-lost")


@clause("resume.mid-window-rule")
def test_observe_save_inside_window(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    _, resumed = mid_window(subject, tmp_path)
    verdict.observe("rule", "refused" if resumed is None else "restored")


@clause("resume.random-state")
def test_dropout_stream_resumes(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    model, recipe = digits_convolution(0.25, 2), Recipe(SGD(2.0**-6))
    through, resumed = (subject.trainer(model, recipe) for _ in range(2))
    batches = [digits_batch(8, 8 * i, image=True) for i in range(6)]
    for batch in batches[:3]:
        through.update((batch,))
    through.gradients((batches[0],))
    through.save(tmp_path)
    resumed.restore(tmp_path)
    for batch in batches[3:]:
        masks = [run.update((batch,)).loss for run in (resumed, through)]
        verdict.equal(masks[0], masks[1], "loss under dropout after the load", "stream-restarted")
    measured, expected = subject.state(resumed), subject.state(through)
    verdict.same_state(measured, expected, "training state after three more updates under dropout", "stream-restarted")


@clause("resume.load-order")
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("order", get_args(LoadOrder))
def test_run_resumes_in_any_load_order(
    subject: Subject, verdict: Verdict, tmp_path: Path, order: LoadOrder, optimizer: str
) -> None:
    need(subject, Capability.LOAD_ORDER)
    schedule = Steps((1, 5), (1.0, 0.5, 0.25))
    recipe = TECHNIQUES[optimizer].replace(scaling=scaling_if(subject), schedule=schedule)
    through, resumed = (subject.trainer(exact_linear(), recipe) for _ in range(2))
    train(through, 0, 4)
    through.save(tmp_path)
    try:
        resumed.restore_in(tmp_path, order)
    except ValueError as error:
        verdict.observe("refusal", str(error))
        return
    verdict.same_state(subject.state(resumed), subject.state(through), "training state right after the load")
    for number in range(4, 7):
        updates = [run.update((exact_batch(8, seed=number),)) for run in (resumed, through)]
        rates = [update.learning_rate for update in updates]
        verdict.equal(rates[0], rates[1], f"learning rate of update {number}, four before the load", "rate-differs")
    verdict.same_state(subject.state(resumed), subject.state(through), "training state three updates after the load")


@clause("resume.live-state")
@pytest.mark.parametrize("technique", ["momentum", "adam", "all"])
def test_runs_with_shared_state_are_independent(subject: Subject, verdict: Verdict, technique: str) -> None:
    need(subject, Capability.LIVE_STATE)
    recipe = make_recipe(subject) if technique == "all" else TECHNIQUES[technique]
    source, receiver, *alone = (subject.trainer(exact_linear(), recipe) for _ in range(4))
    for run in (source, *alone):
        train(run, 0, 4, recipe.accumulation)
    receiver.take(source)
    source_state = subject.state(source)
    verdict.same_state(subject.state(receiver), source_state, "training state right after it was taken")
    train(source, 4, 7, recipe.accumulation)
    verdict.same_state(
        subject.state(receiver), source_state, "training state while the run trained that gave it", "shared-state"
    )
    state_after = subject.state(source)
    train(receiver, 10, 13, recipe.accumulation)
    verdict.same_state(
        subject.state(source), state_after, "training state while the run trained that took it", "shared-state"
    )
    for run, own, start, what in ((source, alone[0], 4, "gave"), (receiver, alone[1], 10, "took")):
        train(own, start, start + 3, recipe.accumulation)
        verdict.same_state(subject.state(run), subject.state(own), f"training state of the run that {what} its state")


def make_recipe(subject: Subject) -> Recipe:
    """Return a recipe of Adam with all other techniques with a state that the framework declares."""
    recipe = TECHNIQUES["adam"].replace(scaling=scaling_if(subject), schedule=TECHNIQUES["schedule"].schedule)
    for capability, change in ((Capability.AVERAGE, {"average": 0.5}), (Capability.ACCUMULATION, {"accumulation": 2})):
        larger = recipe.replace(**change)
        recipe = larger if subject.framework.declares(capability).supported else recipe
    return recipe


@clause("resume.data-position")
@pytest.mark.parametrize("windows", [1, 4], ids=["inside-an-epoch", "between-epochs"])
@pytest.mark.parametrize("order", ["in-order", "shuffled", "drawn"])
def test_data_position_resumes(subject: Subject, verdict: Verdict, order: RowOrder, windows: int) -> None:
    need(subject, Capability.DATA_POSITION)
    unbroken, resumed = subject.framework.resumed_epoch(order, windows)
    verdict.equal(resumed.rows, unbroken.rows, "rows after the checkpoint", "other-rows")
    verdict.equal(resumed.weights, unbroken.weights, "weights after the same rows under dropout", "other-random-state")
