"""Saves and restores a dynamic-mode run with `paddle.save`, `paddle.load` and Paddle's state dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle

from frameworks.paddle.arrays import format_name, put_gradient

if TYPE_CHECKING:
    from frameworks.paddle.trainer import DygraphTrainer

FILE = "run.pdparams"
_PARTS = {"network", "optimizers", "scaler", "gradients", "pending", "generator", "calls"}


def save(trainer: DygraphTrainer, folder: Path) -> None:
    """Writes one file below `folder`: network, optimizers, scaler, gradients of an open window, generator, counters."""
    folder.mkdir(parents=True, exist_ok=True)
    grads = {name: parameter.grad for name, parameter in trainer.network.named.items()}
    run = {
        "network": trainer.network.state_dict(),
        "optimizers": [share.optimizer.state_dict() for share in trainer.shares],
        "scaler": {} if trainer.scaler is None else trainer.scaler.state_dict(),
        "gradients": {name: grad for name, grad in grads.items() if grad is not None},
        "pending": [list(entry) for entry in trainer.pending],
        "generator": trainer.stream.state,
        "calls": list(trainer.segment_calls()),
    }
    paddle.save(run, str(folder / FILE))


def restore(trainer: DygraphTrainer, folder: Path) -> None:
    """Goes back to what `save` wrote.

    Everything is read and checked before anything is changed. The optimizers are made anew, as in a process that
    resumes, because `set_state_dict` refuses a state from before the first update once slots exist.

    Raises:
        ValueError: the file is missing, cut short, foreign, or of another model or recipe.
    """
    try:
        run = paddle.load(str(folder / FILE))
    except Exception as error:
        raise ValueError(f"{folder / FILE}: cannot be read: {type(error).__name__}: {error}") from error
    _check(trainer, folder, run)
    trainer.network.set_state_dict(run["network"])
    trainer.shares = trainer.fresh_shares()
    for share, state in zip(trainer.shares, run["optimizers"], strict=True):
        share.optimizer.set_state_dict(state)
    if trainer.scaler is not None and run["scaler"]:
        trainer.scaler.load_state_dict(run["scaler"])
    for name, parameter in trainer.network.named.items():
        put_gradient(parameter, run["gradients"].get(name))
    trainer.pending = [(float(total), int(own), int(items)) for total, own, items in run["pending"]]
    trainer.stream.state = run["generator"]
    for segment, count in zip(trainer.network.segments, run["calls"], strict=True):
        segment.calls = int(count)


def _check(trainer: DygraphTrainer, folder: Path, run: Any) -> None:
    wrong = None
    if not isinstance(run, dict) or set(run) != _PARTS:
        wrong = "it is not a file of this adapter"
    elif _signature(run["network"]) != _signature(trainer.network.state_dict()):
        wrong = "it is of another model"
    elif len(run["optimizers"]) != len(trainer.shares) or len(run["calls"]) != len(trainer.network.segments):
        wrong = "it is of another recipe"
    elif any(s.scheduler and "LR_Scheduler" not in o for s, o in zip(trainer.shares, run["optimizers"], strict=True)):
        wrong = "it is of a recipe without a learning-rate schedule"
    elif bool(run["scaler"]) != bool(trainer.scaler is not None and trainer.scaler.state_dict()):
        wrong = "it is of a recipe with other loss scaling"
    if wrong:
        raise ValueError(f"{folder / FILE}: {wrong}")


def _signature(state: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(value.shape), format_name(value.dtype)) for name, value in state.items()}
