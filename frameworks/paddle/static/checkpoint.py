"""Saves and restores a static-mode run with `paddle.static.save` and `paddle.static.load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import paddle

from frameworks.base import same_parts
from frameworks.paddle.core.streams import Stream
from frameworks.paddle.static.builds import Programs
from frameworks.paddle.static.programs import ProgramState

PROGRAM, REST = "program", "rest.pdparams"


class StaticRun(Protocol):
    """The saved parts of a run."""

    programs: Programs
    store: ProgramState
    stream: Stream

    def schedulers(self) -> list[Any]: ...

    def anew(self) -> StaticRun: ...


def save(trainer: StaticRun, folder: Path) -> None:
    """Writes the variables of the training program, and a dictionary of what is no variable, below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer.store.save(trainer.programs.training(), folder / PROGRAM)
    paddle.save(_rest(trainer), str(folder / REST))


def _rest(trainer: StaticRun) -> dict[str, Any]:
    schedules = {f"schedule {place}": each.state_dict() for place, each in enumerate(trainer.schedulers())}
    return {**schedules, "generator": trainer.stream.state}


def restore(trainer: StaticRun, folder: Path) -> None:
    """Restores what `save` wrote.

    Program, scope and schedules are created again, as in a process that resumes, and replace the old ones when
    everything is loaded.

    Raises:
        ValueError: a file is missing, cut short or foreign, or Paddle refuses it.
    """
    file = folder / REST
    resumed = trainer.anew()
    try:
        training = resumed.programs.training()
        rest = paddle.load(str(file))
        same_parts(file, rest if isinstance(rest, dict) else (), _rest(resumed))
        resumed.store.load(training, folder / PROGRAM)
        for place, scheduler in enumerate(resumed.schedulers()):
            scheduler.set_state_dict(rest[f"schedule {place}"])
        resumed.stream.state = rest["generator"]
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{folder}: {type(error).__name__}: {error}") from error
    vars(trainer).update(vars(resumed))
