"""A whole run in one file of `torch.save`, read back by `torch.load` with `weights_only`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from frameworks.torch.trainer import TorchTrainer

FILE = "run.pt"
FORMAT = "conformance-torch-1"


def snapshot(trainer: TorchTrainer) -> dict[str, Any]:
    """Everything that tells one moment of the run from another, by PyTorch's own state dictionaries."""
    return {
        "format": FORMAT,
        "of": _identity(trainer),
        "model": trainer.network.state_dict(),
        "steppers": [stepper.state_dict() for stepper in trainer.steppers],
        "average": {} if trainer.average is None else trainer.average.state_dict(),
        "scaler": trainer.scaler.state_dict() if trainer.scaler else {},
        "random": dict(trainer.stream.states),
        "gradients": {name: slot.tensor.grad for name, slot in trainer.slots.items() if slot.tensor.grad is not None},
        "sums": [list(entry) for entry in trainer.sums],
        "items": trainer.items,
        "calls": list(trainer.network.calls),
    }


def _identity(trainer: TorchTrainer) -> list[str]:
    return [trainer.model.name, *(type(stepper.optimizer).__name__ for stepper in trainer.steppers)]


def save(trainer: TorchTrainer, path: Path) -> None:
    """Writes the run below the folder `path`, which is made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    torch.save(snapshot(trainer), path / FILE)


def restore(trainer: TorchTrainer, path: Path) -> None:
    """Goes back to what `save` wrote.

    Raises:
        ValueError: the file is missing, cut short, or of another model, recipe or program; nothing has changed then.
    """
    file = path / FILE
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{file} holds no run of this adapter")
    if state.get("of") != _identity(trainer):
        raise ValueError(f"{file} holds a run of {state.get('of')}, not of {_identity(trainer)}")
    before = copy.deepcopy(snapshot(trainer))
    try:
        _apply(trainer, state)
    except Exception as error:
        _apply(trainer, before)
        raise ValueError(f"{file} does not fit this run: {error}") from error


def _apply(trainer: TorchTrainer, state: Mapping[str, Any]) -> None:
    trainer.network.load_state_dict(state["model"])
    for stepper, held in zip(trainer.steppers, state["steppers"], strict=True):
        stepper.load_state_dict(held)
    if bool(state["average"]) != (trainer.average is not None):
        raise ValueError("one of the two runs averages its weights and the other does not")
    if trainer.average is not None:
        trainer.average.load_state_dict(state["average"])
    if bool(state["scaler"]) != bool(trainer.scaler and trainer.scaler.is_enabled()):
        raise ValueError("one of the two runs has loss scaling and the other has none")
    if trainer.scaler is not None:
        trainer.scaler.load_state_dict(state["scaler"])
    trainer.stream.replace(state["random"])
    for name, slot in trainer.slots.items():
        gradient = state["gradients"].get(name)
        slot.tensor.grad = None if gradient is None else gradient.to(slot.tensor.device).clone()
    trainer.sums = [(float(total), int(count)) for total, count in state["sums"]]
    trainer.items = int(state["items"])
    if len(state["calls"]) == len(trainer.network.calls):
        trainer.network.calls[:] = [int(count) for count in state["calls"]]
