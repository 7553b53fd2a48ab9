"""Saves and restores a dynamic-mode run with `paddle.save`, `paddle.load` and Paddle's state dictionaries."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.base import MicroBatch, same_parts
from frameworks.contract import LoadOrder
from frameworks.paddle.core import ways
from frameworks.paddle.core.arrays import put_gradient, to_tensor
from frameworks.paddle.training.optimizers import schedule_of
from frameworks.paddle.training.state_readers import ReadRun

FILE = "run.pdparams"


def save(trainer: ReadRun, folder: Path) -> None:
    """Writes one file below `folder`, a dictionary of parts."""
    folder.mkdir(parents=True, exist_ok=True)
    ways.write(trainer.recipe.way("save"), parts(trainer), folder / FILE)


def parts(trainer: ReadRun) -> dict[str, Any]:
    """Network, optimizers and scaler by their state dictionaries; the open window, the generator and the counters."""
    grads = {name: parameter.grad for name, parameter in trainer.network.named.items()}
    return {
        "model": trainer.network.state_dict(),
        **{f"optimizer {place}": share.optimizer.state_dict() for place, share in enumerate(trainer.shares)},
        **({} if trainer.scaler is None else {"scaler": trainer.scaler.state_dict()}),
        "window": {
            "gradients": {name: grad for name, grad in grads.items() if grad is not None},
            "micro-batches": [[micro.total, micro.items] for micro in trainer.ledger.micro_batches],
            "items": trainer.ledger.items,
        },
        "generator": trainer.stream.state,
        "calls": list(trainer.segment_calls()),
    }


def restore(trainer: ReadRun, folder: Path) -> None:
    """Restores what `save` wrote; `restore_in` in the order of the parts.

    Model, optimizers and scaler are created again, as in a process that resumes, and replace the old ones when all
    parts are loaded. A part that `set_state_dict` warns it skips counts as refused.

    Raises:
        ValueError: the file is missing, cut short or foreign, or Paddle refuses a part of it.
    """
    restore_in(trainer, folder, None)


def restore_in(trainer: ReadRun, folder: Path, order: LoadOrder | None) -> None:
    """`restore` with the parts made and loaded in this order."""
    file = folder / FILE
    resumed = trainer.anew()
    try:
        saved = ways.read(trainer.recipe, file)
        same_parts(file, saved if isinstance(saved, dict) else (), parts(resumed))
        if order == "scaler-used":
            resumed.use_scaler()
        load(resumed, saved, reverse=order == "optimizer-first")
        if order in ("schedule-made-last", "schedule-made-there"):
            _make_schedules(resumed, saved, there=order == "schedule-made-there")
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
    vars(trainer).update(vars(resumed))


def take(trainer: ReadRun, other: ReadRun) -> None:
    """Gives a run the state dictionaries that the parts of another one have now."""
    resumed = trainer.anew()
    load(resumed, parts(other))
    vars(trainer).update(vars(resumed))


def _make_schedules(trainer: ReadRun, saved: dict[str, Any], *, there: bool) -> None:
    """Gives loaded optimizers schedules that are made now: `there`, at the place of the saved ones, or to be loaded."""
    for place, share in enumerate(trainer.shares):
        state = saved[f"optimizer {place}"].get("LR_Scheduler", {})
        made = share.scheduler = schedule_of(trainer.recipe, state.get("last_epoch", 0) - 1 if there else -1)
        if made is not None:
            share.optimizer.set_lr_scheduler(made)
        if made is not None and not there:
            made.set_state_dict(state)


def load(trainer: ReadRun, saved: dict[str, Any], *, reverse: bool = False) -> None:
    """Loads every part, or the last one first; raises where `set_state_dict` only warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Skip loading")
        for part in reversed(_LOADS) if reverse else _LOADS:
            part(trainer, saved)


def _load_model(trainer: ReadRun, saved: dict[str, Any]) -> None:
    trainer.network.set_state_dict(saved["model"])


def _load_optimizers(trainer: ReadRun, saved: dict[str, Any]) -> None:
    for place, share in enumerate(trainer.shares):
        share.optimizer.set_state_dict(saved[f"optimizer {place}"])


def _load_scaler(trainer: ReadRun, saved: dict[str, Any]) -> None:
    if trainer.scaler is not None and trainer.scaler.is_enable():
        trainer.scaler.load_state_dict(saved["scaler"])


def _load_loop(trainer: ReadRun, saved: dict[str, Any]) -> None:
    for name, parameter in trainer.network.named.items():
        gradient = saved["window"]["gradients"].get(name)
        put_gradient(parameter, to_tensor(gradient, parameter) if isinstance(gradient, np.ndarray) else gradient)
    window = [MicroBatch(float(total), int(items)) for total, items in saved["window"]["micro-batches"]]
    trainer.ledger.replace(window, int(saved["window"]["items"]))
    trainer.stream.state = saved["generator"]
    for segment, count in zip(trainer.network.segments, saved["calls"], strict=True):
        segment.calls = int(count)


_LOADS = (_load_model, _load_optimizers, _load_scaler, _load_loop)
