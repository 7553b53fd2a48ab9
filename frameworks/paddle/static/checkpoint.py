"""Saves and restores a static-mode run with `paddle.static.save` and `paddle.static.load`."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import paddle

from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer, of_same_class, same_parts
from frameworks.contract import LoadOrder, Trainer
from frameworks.paddle.core.streams import Stream
from frameworks.paddle.static.builds import Programs
from frameworks.paddle.static.programs import ProgramState
from frameworks.paddle.training.optimizers import schedule_of

PROGRAM, REST = "program", "rest.pdparams"


class SavedRun(BaseTrainer):
    """The saved parts of a run.

    Attributes:
        stored_names: of parameters and statistics.
    """

    recipe: Recipe
    stored_names: dict[str, str]
    programs: Programs
    store: ProgramState
    stream: Stream

    @abstractmethod
    def anew(self) -> SavedRun:
        """A new run, as created by a process that resumes."""

    def schedulers(self) -> list[Any]:
        """The schedule of each optimizer that has one."""
        return [share.scheduler for share in self.programs.shares if share.scheduler is not None]

    def save(self, path: Path) -> None:
        save(self, path)

    def restore(self, path: Path) -> None:
        restore(self, path)

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        restore(self, path, order)

    def take(self, other: Trainer) -> None:
        take(self, of_same_class(self, other))


def save(trainer: SavedRun, folder: Path) -> None:
    """Writes the variables of the training program, and a dictionary of what is no variable, below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer.store.save(trainer.programs.training(), folder / PROGRAM)
    paddle.save(_rest(trainer), str(folder / REST))


def _rest(trainer: SavedRun) -> dict[str, Any]:
    schedules = {f"schedule {place}": each.state_dict() for place, each in enumerate(trainer.schedulers())}
    return {**schedules, "generator": trainer.stream.state}


def restore(trainer: SavedRun, folder: Path, order: LoadOrder | None = None) -> None:
    """Restores what `save` wrote, with the parts made and loaded in this order.

    Raises:
        ValueError: a file is missing, cut short or foreign, or Paddle refuses it.
    """
    vars(trainer).update(vars(loaded(trainer, folder, order)))


def loaded(trainer: SavedRun, folder: Path, order: LoadOrder | None = None) -> SavedRun:
    """A run with what `save` wrote, for which program, scope and schedules are created again, as in a new process.

    Raises:
        ValueError: as `restore`.
    """
    file = folder / REST
    resumed = _anew(trainer)
    try:
        training = resumed.programs.training()
        rest = paddle.load(str(file))
        same_parts(file, rest if isinstance(rest, dict) else (), _rest(resumed))
        if order == "scaler-used":
            resumed.programs.use_scaler()
        if order == "optimizer-first":
            _load_schedules(resumed, rest)
            resumed.store.load_apart(training, folder / PROGRAM, tuple(resumed.stored_names.values()))
        else:
            resumed.store.load(training, folder / PROGRAM)
            if order in ("schedule-made-last", "schedule-made-there"):
                _make_schedules(resumed, rest, there=order == "schedule-made-there")
            if order != "schedule-made-there":
                _load_schedules(resumed, rest)
        resumed.stream.state = rest["generator"]
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{folder}: {type(error).__name__}: {error}") from error
    return resumed


def take(trainer: SavedRun, other: SavedRun) -> None:
    """Gives a run the variables, schedules and random stream that another one has now."""
    resumed = _anew(trainer)
    other.programs.training()
    resumed.store.take(resumed.programs.training(), other.store)
    _load_schedules(resumed, _rest(other))
    resumed.stream.state = other.stream.state
    vars(trainer).update(vars(resumed))


def _anew(trainer: SavedRun) -> SavedRun:
    resumed = trainer.anew()
    resumed.programs.frozen = trainer.programs.frozen
    return resumed


def _load_schedules(trainer: SavedRun, rest: dict[str, Any]) -> None:
    for place, scheduler in enumerate(trainer.schedulers()):
        scheduler.set_state_dict(rest[f"schedule {place}"])


def _make_schedules(trainer: SavedRun, rest: dict[str, Any], *, there: bool) -> None:
    """Builds programs with schedules that are made now, `there` at the place of the saved ones."""
    places = [rest[f"schedule {place}"]["last_epoch"] for place, _ in enumerate(trainer.schedulers())]
    if places:
        trainer.programs.renew_schedules(schedule_of(trainer.recipe, last - 1 if there else -1) for last in places)
