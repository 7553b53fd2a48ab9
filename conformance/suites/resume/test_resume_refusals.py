"""Saves that a load must refuse, and the behaviour of a restored run."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need, train
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import MASTERED, PURE_LOW, SGD, Adam, DynamicScaling, Precision, Recipe, Steps
from frameworks.contract import Capability, Trainer

SCALING = DynamicScaling(initial=2.0**10, interval=3)
PLAIN = Recipe(Adam())
SCHEDULED = PLAIN.replace(schedule=Steps((1,), (1.0, 0.5)))
Training = tuple[Model, Recipe]
STRANGERS: dict[str, tuple[Training, Training]] = {
    "scaler-into-none": ((exact_linear(), PLAIN.replace(scaling=SCALING)), (exact_linear(), PLAIN)),
    "none-into-scaler": ((exact_linear(), PLAIN), (exact_linear(), PLAIN.replace(scaling=SCALING))),
    "moments-into-none": ((exact_linear(), PLAIN), (exact_linear(), Recipe(SGD()))),
    "none-into-moments": ((exact_linear(), Recipe(SGD())), (exact_linear(), PLAIN)),
    "layers-into-none": ((exact_stack(), PLAIN), (exact_linear(), PLAIN)),
    "none-into-layers": ((exact_linear(), PLAIN), (exact_stack(), PLAIN)),
    "schedule-into-none": ((exact_linear(), SCHEDULED), (exact_linear(), PLAIN)),
    "none-into-schedule": ((exact_linear(), PLAIN), (exact_linear(), SCHEDULED)),
    "other-shapes": ((exact_linear(8, 4), PLAIN), (exact_linear(4, 4), PLAIN)),
}


def refusal(trainer: Trainer, path: Path) -> str:
    """Return the message of a refused load; "" if the load succeeds or the message is empty."""
    try:
        trainer.restore(path)
    except ValueError as error:
        return str(error)
    return ""


def damage(path: Path, how: str) -> None:
    """Cut a file in half, change one byte in its middle, overwrite it, or delete it."""
    content = path.read_bytes()
    middle = len(content) // 2
    match how:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(content[:middle])
        case "altered":
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :])
        case _:
            path.write_bytes(b"not a checkpoint at all")


@clause("resume.truncated-file")
@pytest.mark.parametrize("how", ["truncated", "foreign", "missing"])
def test_truncated_checkpoint_is_refused_without_side_effects(
    subject: Subject, verdict: Verdict, tmp_path: Path, how: str
) -> None:
    load_damaged(subject, verdict, tmp_path, how)


@clause("resume.altered-file")
def test_altered_checkpoint_is_refused_without_side_effects(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    load_damaged(subject, verdict, tmp_path, "altered")


def load_damaged(subject: Subject, verdict: Verdict, tmp_path: Path, how: str) -> None:
    """Load damaged files into the run that wrote them, and check that the run refuses them."""
    trainer = subject.trainer(exact_stack(64), Recipe(Adam()))
    trainer.update((exact_batch(inputs=64),))
    trainer.save(tmp_path)
    trainer.update((exact_batch(inputs=64, seed=1),))
    for path in [p for p in sorted(tmp_path.rglob("*")) if p.is_file()]:
        damage(path, how)
    before = subject.state(trainer)
    text = refusal(trainer, tmp_path)
    what = f"a {how} file is refused with a message"
    verdict.holds(bool(text), what, text or "no error message", "a ValueError", "damage-unnoticed")
    verdict.same_state(subject.state(trainer), before, "training state after the refusal", "damaged-by-load")


@clause("resume.unclaimed-is-refused")
@pytest.mark.parametrize("stranger", STRANGERS)
def test_unclaimed_state_is_refused(subject: Subject, verdict: Verdict, tmp_path: Path, stranger: str) -> None:
    offer(subject, verdict, tmp_path, *STRANGERS[stranger])


@clause("resume.unclaimed-is-refused")
@pytest.mark.parametrize("saved", [True, False], ids=["average-into-none", "none-into-average"])
def test_average_on_one_side_only_is_refused(subject: Subject, verdict: Verdict, tmp_path: Path, saved: bool) -> None:
    recipes = PLAIN, PLAIN.replace(average=0.5)
    recipe, wanted = reversed(recipes) if saved else recipes
    offer(subject, verdict, tmp_path, (exact_linear(), recipe), (exact_linear(), wanted))


@clause("resume.unclaimed-is-refused")
def test_unclaimed_masters_are_refused_or_used(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    """A save may hold only the masters, from which the low-precision weights are made; then nothing is lost."""
    saved, receiver = make_runs(
        subject, tmp_path, (exact_linear(), PLAIN.replace(precision=MASTERED[1])), (exact_linear(), PLAIN)
    )
    text = refusal(receiver, tmp_path)
    verdict.observe("masters-into-none", "refused" if text else "taken")
    if not text:
        masters = saved.master_parameters()
        verdict.same_state(
            receiver.master_parameters(), masters, "weights, compared with the masters", "silently-dropped"
        )
        states = receiver.optimizer_state(), saved.optimizer_state()
        verdict.same_state(*states, "optimizer state, compared with that of the masters", "silently-dropped")


@clause("resume.refusal-changes-nothing")
@pytest.mark.parametrize("stranger", STRANGERS)
def test_refused_load_has_no_side_effects(subject: Subject, verdict: Verdict, tmp_path: Path, stranger: str) -> None:
    _, receiver = make_runs(subject, tmp_path, *STRANGERS[stranger])
    before = subject.state(receiver)
    text = refusal(receiver, tmp_path)
    verdict.observe(stranger, "refused" if text else "taken")
    if text:
        verdict.same_state(subject.state(receiver), before, "training state after the refusal", "changed-by-refusal")


@clause("resume.other-format-is-refused")
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
@pytest.mark.parametrize("narrower", [False, True], ids=["into-float32", "from-float32"])
def test_weights_in_other_format_are_refused(
    subject: Subject, verdict: Verdict, tmp_path: Path, precision: Precision, narrower: bool
) -> None:
    recipes = PLAIN.replace(precision=precision), PLAIN
    recipe, wanted = reversed(recipes) if narrower else recipes
    offer(subject, verdict, tmp_path, (exact_linear(), recipe), (exact_linear(), wanted))


@clause("resume.other-format-is-refused")
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
def test_low_precision_formats_are_not_confused(
    subject: Subject, verdict: Verdict, tmp_path: Path, precision: Precision
) -> None:
    (other,) = (candidate for candidate in PURE_LOW if candidate != precision)
    recipes = PLAIN.replace(precision=precision), PLAIN.replace(precision=other)
    offer(subject, verdict, tmp_path, (exact_linear(), recipes[0]), (exact_linear(), recipes[1]))


def offer(subject: Subject, verdict: Verdict, tmp_path: Path, saved: Training, other: Training) -> None:
    """Save a run of a model by a recipe, and check that a run of the other model and recipe refuses to load it."""
    _, receiver = make_runs(subject, tmp_path, saved, other)
    text = refusal(receiver, tmp_path)
    what = "a run of another recipe is refused with a message"
    verdict.holds(bool(text), what, text or "no error message", "a ValueError", "silently-dropped")


def make_runs(subject: Subject, tmp_path: Path, *trainings: Training) -> tuple[Trainer, Trainer]:
    """Return a run that was saved and a run of another kind; both have made an update."""
    saved, receiver = (subject.trainer(model, recipe) for model, recipe in trainings)
    for run, (model, _) in zip((saved, receiver), trainings, strict=True):
        run.update((exact_batch(8, model.sample[0]),))
    saved.save(tmp_path)
    return saved, receiver


def gradients(trainer: Trainer) -> object:
    """Return the unscaled gradients of a window."""
    return trainer.gradients((exact_batch(),))


def outputs(trainer: Trainer) -> object:
    """Return the outputs of an evaluation."""
    return trainer.predict(exact_batch().inputs)


def unscaled_manually(trainer: Trainer) -> object:
    """Make an update whose gradients are unscaled by hand."""
    trainer.apply_gradients(full(trainer, 0.5), unscale_calls=1)
    return trainer.state()


def feed_overflow(trainer: Trainer) -> object:
    """Apply gradients that overflow."""
    trainer.apply_gradients(full(trainer, np.inf))
    return trainer.state()


CALLS: dict[str, Callable[[Trainer], object]] = {
    "scaler-state": lambda trainer: trainer.scaler_state(),
    "scaler-settings": lambda trainer: trainer.scaler_settings(),
    "gradients": gradients,
    "predict": outputs,
    "unscale": unscaled_manually,
    "overflow": feed_overflow,
}


@clause("resume.restored-is-complete")
@pytest.mark.parametrize("first", CALLS)
def test_first_call_after_load_succeeds(subject: Subject, verdict: Verdict, tmp_path: Path, first: str) -> None:
    if first == "unscale":
        need(subject, Capability.EXPLICIT_UNSCALE)
    running, restored = (subject.trainer(exact_linear(), PLAIN.replace(scaling=SCALING)) for _ in range(2))
    train(running, 0, 2)
    running.save(tmp_path)
    restored.restore(tmp_path)
    verdict.equal(CALLS[first](restored), CALLS[first](running), f"result of {first} after a load", "answer-differs")


@clause("resume.restored-is-complete")
def test_loaded_run_can_be_saved_immediately(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    first, second, third = (subject.trainer(exact_linear(), SCHEDULED) for _ in range(3))
    first.update((exact_batch(),))
    first.save(tmp_path / "first")
    second.restore(tmp_path / "first")
    second.save(tmp_path / "second")
    third.restore(tmp_path / "second")
    verdict.same_state(subject.state(third), subject.state(first), "training state after two loads")
