"""A run as one Orbax tree, which is compared with the tree of the restoring run."""

from pathlib import Path
from typing import Any

import numpy as np

from frameworks.jax.core import ways
from frameworks.jax.training import scaler
from frameworks.jax.training.state_readers import Readings
from frameworks.jax.training.steps import CarriedState, JaxMicroBatch

FOLDER = "run"
_FIELDS = ("total", "items", "scale_before", "finite", "applied", "rate")


def _tree(trainer: Readings) -> dict[str, Any]:
    """The full state of the run.

    JMP's scale is one that Orbax cannot save, so its two numbers stand for it.
    """
    window = trainer.ledger.micro_batches
    micro = np.zeros((trainer.recipe.accumulation, len(_FIELDS)))
    for row, each in zip(micro, window, strict=False):
        row[:] = [getattr(each, name) for name in _FIELDS]
    return {
        "state": trainer.train_state,
        "scale": scaler.arrays_of(trainer.scale),
        "moved": trainer.moved,
        "window": {"micro": micro, "counts": np.array([len(window), trainer.ledger.items, trainer.length])},
    }


def save(trainer: Readings, path: Path) -> None:
    """Writes the run below the folder `path`.

    Raises:
        ValueError: gradients wait for `apply`, which belong to no state of the run.
    """
    if trainer.pending is not None:
        raise ValueError("a run is saved between updates, and gradients wait for apply")
    ways.write(trainer.recipe.way("save"), path.absolute() / FOLDER, _tree(trainer))


def take(trainer: Readings, other: Readings) -> None:
    """Gives a run the trees of another one, whose arrays never change."""
    trainer.train_state, trainer.moved, trainer.scale = other.train_state, other.moved, other.scale
    trainer.ledger.replace(other.ledger.micro_batches, other.ledger.items)
    trainer.pending = other.pending
    trainer.resize(other.length)


def restore(trainer: Readings, path: Path) -> None:
    """Restores what `save` wrote.

    Raises:
        ValueError: the files are missing, damaged, or of a run of another kind; nothing has changed then.
    """
    folder, like = path.absolute() / FOLDER, _tree(trainer)
    try:
        run = ways.read(trainer.recipe, folder, like)
    except Exception as error:  # Orbax raises that very class for some of what it cannot read
        raise ValueError(f"{folder} cannot be restored: {' '.join(str(error).split())}") from error
    count, items, length = (int(number) for number in run["window"]["counts"])
    trainer.train_state, trainer.moved = run["state"], CarriedState(*run["moved"])
    trainer.scale = scaler.with_state(trainer.scale, run["scale"], trainer.place)
    window = [
        JaxMicroBatch(total, int(own), before, bool(applied), rate, bool(finite))
        for total, own, before, finite, applied, rate in run["window"]["micro"][:count].tolist()
    ]
    trainer.ledger.replace(window, items)
    trainer.pending = None
    trainer.resize(length)
