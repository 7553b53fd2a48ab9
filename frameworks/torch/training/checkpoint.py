"""A whole run in one file of `torch.save`, read back by `torch.load` with `weights_only`.

The file is what PyTorch's tutorial on saving and loading calls a general checkpoint: a dictionary of the user's, which
holds the `state_dict` of every part and what the training loop keeps itself.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from frameworks.base import MicroBatch, same_parts
from frameworks.contract import LoadOrder
from frameworks.torch.training import checkpoint_ways
from frameworks.torch.training.run import TorchRun

FILE, PARTS = "run.pt", "parts"
LOOP = "loop"
"""Key of state that no `state_dict` contains."""


def snapshot(trainer: TorchRun) -> dict[str, Any]:
    """The full state of the run."""
    return {name: part.state_dict() for name, part in trainer.parts().items()} | _loop(trainer)


def _loop(trainer: TorchRun) -> dict[str, Any]:
    return {LOOP: {**loop_state(trainer), "gradients": gradients(trainer)}}


def gradients(trainer: TorchRun) -> dict[str, torch.Tensor]:
    """Accumulated gradients of an open window."""
    return {name: slot.tensor.grad for name, slot in trainer.slots.items() if slot.tensor.grad is not None}


def loop_state(trainer: TorchRun) -> dict[str, Any]:
    """State of the training loop itself, without gradients."""
    return {
        "random": dict(trainer.stream.states),
        "applied": [stepper.applied for stepper in trainer.steppers],
        "window": [[micro.total, micro.items] for micro in trainer.ledger.micro_batches],
        "items": trainer.ledger.items,
        "calls": list(trainer.network.calls.counts),
    }


def save(trainer: TorchRun, path: Path) -> None:
    """Writes the run below the folder `path`, which is created if necessary."""
    path.mkdir(parents=True, exist_ok=True)
    if trainer.recipe.way("save") == "distributed":
        checkpoint_ways.save_distributed(trainer.parts(), path / PARTS)
        torch.save(_loop(trainer), path / FILE)
    else:
        torch.save(snapshot(trainer), path / FILE)


def restore(trainer: TorchRun, path: Path) -> None:
    """Restores what `save` wrote, part by part, each by its own `load_state_dict`.

    Raises:
        ValueError: the file cannot be read, holds other parts than the run has, or PyTorch refuses one of them; what
            came before that is loaded then.
    """
    _restore(trainer, path, _load_parts)


def restore_in(trainer: TorchRun, path: Path, order: LoadOrder) -> None:
    """`restore` for a new run, whose parts are made and loaded in this order.

    Raises:
        ValueError: as `restore`.
    """
    match order:
        case "optimizer-first":
            _restore(trainer, path, _load_reversed)
        case "schedule-made-last":
            _restore(trainer, path, _make_schedules_last)
        case "schedule-made-there":
            _restore(trainer, path, _make_schedules_there)
        case "scaler-used":
            if trainer.scaler is not None:
                trainer.scaler.scale(torch.ones((), device=trainer.device))
            restore(trainer, path)


def take(trainer: TorchRun, other: TorchRun) -> None:
    """Loads the state that the parts of another run have now, each by its own `load_state_dict`."""
    _load_parts(trainer, {name: part.state_dict() for name, part in other.parts().items()})
    go_on(trainer, loop_state(other))
    put_gradients(trainer, gradients(other))


def _restore(trainer: TorchRun, path: Path, load: Callable[[TorchRun, Mapping[str, Any]], None]) -> None:
    file = path / FILE
    try:
        mapped = trainer.recipe.way("load") == "mapped"
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped or None)
        if trainer.recipe.way("save") == "distributed":
            checkpoint_ways.load_distributed(trainer.parts(), path / PARTS)
        else:
            same_parts(file, saved, [*trainer.parts(), LOOP])
            load(trainer, saved)
        go_on(trainer, saved[LOOP])
        put_gradients(trainer, saved[LOOP]["gradients"])
    except Exception as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error


def _load_parts(trainer: TorchRun, saved: Mapping[str, Any]) -> None:
    assigned = trainer.recipe.way("load") == "assigned"
    if assigned:
        trainer.network.load_state_dict(saved["model"], assign=True)
        trainer.follow_network()
    for name, part in trainer.parts().items():
        if not (assigned and name == "model"):
            part.load_state_dict(saved[name])


def _load_reversed(trainer: TorchRun, saved: Mapping[str, Any]) -> None:
    for name, part in reversed(trainer.parts().items()):
        part.load_state_dict(saved[name])


def _make_schedules_last(trainer: TorchRun, saved: Mapping[str, Any]) -> None:
    schedules = _without_schedules(trainer, saved)
    for stepper in trainer.steppers:
        stepper.make_schedule()
    for name in schedules:
        trainer.parts()[name].load_state_dict(saved[name])


def _make_schedules_there(trainer: TorchRun, saved: Mapping[str, Any]) -> None:
    _without_schedules(trainer, saved)
    for stepper, applied in zip(trainer.steppers, saved[LOOP]["applied"], strict=True):
        stepper.make_schedule(last=int(applied) - 1)


def _without_schedules(trainer: TorchRun, saved: Mapping[str, Any]) -> list[str]:
    """Loads all other parts; the names of schedules."""
    schedules = [name for name in trainer.parts() if name.startswith("schedule")]
    for name, part in trainer.parts().items():
        if name not in schedules:
            part.load_state_dict(saved[name])
    return schedules


def go_on(trainer: TorchRun, loop: Mapping[str, Any]) -> None:
    """Restores what `loop_state` returned."""
    trainer.stream.replace(loop["random"])
    for stepper, applied in zip(trainer.steppers, loop["applied"], strict=True):
        stepper.applied = int(applied)
    window = [MicroBatch(float(total), int(items)) for total, items in loop["window"]]
    trainer.ledger.replace(window, int(loop["items"]))
    if len(loop["calls"]) == len(trainer.network.calls.counts):
        trainer.network.calls.counts[:] = [int(count) for count in loop["calls"]]


def put_gradients(trainer: TorchRun, summed: Mapping[str, torch.Tensor]) -> None:
    """Restores what `gradients` returned."""
    for name, slot in trainer.slots.items():
        gradient = summed.get(name)
        slot.tensor.grad = None if gradient is None else gradient.to(slot.tensor.device).clone()
