"""Saves and restores a static-mode run: every variable of its scope through `paddle.save` and `paddle.load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle

if TYPE_CHECKING:
    from frameworks.paddle.static_trainer import StaticTrainer

FILE = "run.pdparams"
_PARTS = {"optimizer", "variables", "schedule", "generator"}


def save(trainer: StaticTrainer, folder: Path) -> None:
    """Writes the scope's variables, the scheduler and the generator to one file below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {
        "optimizer": type(trainer.recipe.optimizer).__name__,
        "variables": trainer.store.snapshot(),
        "schedule": {} if trainer.scheduler is None else trainer.scheduler.state_dict(),
        "generator": trainer.stream.state,
    }
    paddle.save(run, str(folder / FILE))


def restore(trainer: StaticTrainer, folder: Path) -> None:
    """Goes back to what `save` wrote; variables that the run has not made yet are made.

    Raises:
        ValueError: the file is missing, cut short, foreign, or of another model or recipe; nothing is changed.
    """
    try:
        run: Any = paddle.load(str(folder / FILE), return_numpy=True)
    except Exception as error:
        raise ValueError(f"{folder / FILE}: cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(run, dict) or set(run) != _PARTS:
        raise ValueError(f"{folder / FILE}: it is not a file of this adapter")
    trainer.store.check(run["variables"], str(folder / FILE))
    other = run["optimizer"] != type(trainer.recipe.optimizer).__name__
    if other or bool(run["schedule"]) != (trainer.scheduler is not None):
        raise ValueError(f"{folder / FILE}: it is of another recipe")
    trainer.store.load(run["variables"])
    if trainer.scheduler is not None:
        trainer.scheduler.set_state_dict(run["schedule"])
    trainer.stream.state = run["generator"]
    trainer.pending = None
