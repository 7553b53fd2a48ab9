"""Save, load, go on: the run that was interrupted is the run that never stopped."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from conformance.judging import Subject, Verdict, clause, full, spiked
from fixtures.data import digits_batch, exact_batch
from fixtures.models import digits_convolution, exact_linear, exact_stack, scalar
from fixtures.recipe import SGD, Adam, AdamW, DynamicScaling, Optimizer, Recipe, Recompute, Steps
from frameworks.contract import Trainer

OPTIMIZERS: dict[str, Optimizer] = {
    "momentum": SGD(2.0**-6, momentum=0.5),
    "adam": Adam(1e-3),
    "adamw": AdamW(1e-3, weight_decay=0.01),
}
SCALING = DynamicScaling(initial=2.0**10, interval=3)
TECHNIQUES: dict[str, Recipe] = {
    "plain": Recipe(),
    "scaling": Recipe(scaling=SCALING),
    "accumulation": Recipe(accumulation=2),
    "recomputation": Recipe(recompute=Recompute(2)),
    "schedule": Recipe(schedule=Steps((2, 6), (1.0, 0.5, 0.25))),
}


def train(trainer: Trainer, start: int, stop: int, k: int = 1) -> None:
    """Updates `start` to `stop`, each on a batch of its own."""
    for i in range(start, stop):
        trainer.update(exact_batch(8, seed=i).into(k))


@clause("resume.bit-identical")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_resumed_run_is_the_run_that_never_stopped(
    subject: Subject, verdict: Verdict, tmp_path: Path, technique: str, optimizer: str
) -> None:
    recipe = TECHNIQUES[technique].but(optimizer=OPTIMIZERS[optimizer])
    model, k = exact_stack(), recipe.accumulation
    through, saved, resumed = (subject.trainer(model, recipe) for _ in range(3))
    train(through, 0, 8, k)
    train(saved, 0, 4, k)
    saved.save(tmp_path)
    resumed.restore(tmp_path)
    verdict.same_state(resumed.state(), saved.state(), "state right after the load")
    train(resumed, 4, 8, k)
    verdict.same_state(resumed.state(), through.state(), "state after four more updates")


@clause("resume.scaler-state")
def test_the_scaler_goes_on_where_it_was(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
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
    """One feed; the scale after it and whether it was skipped."""
    update = trainer.feed(spiked(trainer, value) if value else full(trainer, 2.0**-6))
    return update.scale_after, update.skipped


@clause("resume.load-has-no-side-effects")
def test_loading_what_was_just_saved_changes_nothing(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    trainer = subject.trainer(digits_convolution(0.25, 2), Recipe(Adam(), scaling=SCALING))
    trainer.update((digits_batch(8, image=True),))
    trainer.save(tmp_path)
    before = trainer.state()
    for _ in range(2):
        trainer.restore(tmp_path)
        verdict.same_state(trainer.state(), before, "state after loading")


@clause("resume.save-has-no-side-effects")
def test_saving_changes_nothing(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    trainer = subject.trainer(digits_convolution(0.25, 2), Recipe(Adam(), scaling=SCALING))
    trainer.update((digits_batch(8, image=True),))
    before = trainer.state()
    trainer.save(tmp_path)
    verdict.same_state(trainer.state(), before, "state after saving")


def mid_window(subject: Subject, tmp_path: Path) -> tuple[Trainer, Trainer | None]:
    """A run through a window of four, and one that was saved in its middle; None where saving there was refused."""
    recipe = Recipe(SGD(2.0**-4), accumulation=4)
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
def test_a_save_inside_a_window_is_whole_or_refused(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    through, resumed = mid_window(subject, tmp_path)
    if resumed is None:
        verdict.holds(True, "the save was refused")
    else:
        verdict.same_state(
            resumed.parameters(), through.parameters(), "parameters at the window's end", "partial-window-lost"
        )


@clause("resume.mid-window-rule")
def test_what_a_save_inside_a_window_does_is_observed(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    _, resumed = mid_window(subject, tmp_path)
    verdict.observe("rule", "refused" if resumed is None else "restored")


@clause("resume.random-state")
def test_dropout_continues_its_stream(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    model, recipe = digits_convolution(0.25, 2), Recipe(SGD(2.0**-6))
    through, saved, resumed = (subject.trainer(model, recipe) for _ in range(3))
    batches = [digits_batch(8, 8 * i, image=True) for i in range(4)]
    for batch in batches:
        through.update((batch,))
    for batch in batches[:2]:
        saved.update((batch,))
    saved.save(tmp_path)
    resumed.restore(tmp_path)
    for batch in batches[2:]:
        resumed.update((batch,))
    verdict.same_state(
        resumed.state(), through.state(), "state after two more updates under dropout", "stream-restarted"
    )


@clause("resume.truncated-file")
@pytest.mark.parametrize("damage", ["truncated", "foreign", "missing"])
def test_damaged_files_are_refused_and_change_nothing(
    subject: Subject, verdict: Verdict, tmp_path: Path, damage: str
) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(Adam(), scaling=SCALING))
    trainer.update((exact_batch(),))
    trainer.save(tmp_path)
    trainer.update((exact_batch(seed=1),))
    for path in [p for p in sorted(tmp_path.rglob("*")) if p.is_file()]:
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"not a checkpoint at all")
    before, refusal = trainer.state(), ""
    try:
        trainer.restore(tmp_path)
    except ValueError as error:
        refusal = str(error)
    verdict.holds(
        bool(refusal), f"a {damage} file is refused with a message", refusal, "a ValueError", "damage-unnoticed"
    )
    verdict.same_state(trainer.state(), before, "state after the refusal", "damaged-by-load")
