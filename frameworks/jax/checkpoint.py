"""A whole run as one tree of Orbax, which compares it with the tree of the run that it is restored into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orbax.checkpoint as ocp

from frameworks.jax import scaler
from frameworks.jax.steps import Micro, Moved

if TYPE_CHECKING:
    from frameworks.jax.trainer import JaxTrainer

FOLDER = "run"
_FIELDS = ("total", "items", "scale_before", "finite", "applied", "rate")


def _tree(trainer: JaxTrainer) -> dict[str, Any]:
    """Everything that tells one moment of the run from another.

    JMP's scale is one that Orbax cannot save, so its two numbers stand for it.
    """
    micro = np.zeros((trainer.recipe.accumulation, len(_FIELDS)))
    for row, each in zip(micro, trainer.window, strict=False):
        row[:] = [getattr(each, name) for name in _FIELDS]
    return {
        "state": trainer.train_state,
        "scale": scaler.held(trainer.scale),
        "moved": trainer.moved,
        "window": {"micro": micro, "counts": np.array([len(trainer.window), trainer.items, trainer.length])},
    }


def save(trainer: JaxTrainer, path: Path) -> None:
    """Writes the run below the folder `path`.

    Raises:
        ValueError: gradients wait for `apply`, which belong to no state of the run.
    """
    if trainer.pending is not None:
        raise ValueError("a run is saved between updates, and gradients wait for apply")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute() / FOLDER, _tree(trainer), force=True)


def restore(trainer: JaxTrainer, path: Path) -> None:
    """Goes back to what `save` wrote.

    Raises:
        ValueError: the files are missing, damaged, or of a run of another kind; nothing has changed then.
    """
    folder = path.absolute() / FOLDER
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            run = checkpointer.restore(folder, _tree(trainer))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} cannot be restored: {' '.join(str(error).split())}") from error
    count, items, length = (int(number) for number in run["window"]["counts"])
    rows = [dict(zip(_FIELDS, row.tolist(), strict=True)) for row in run["window"]["micro"][:count]]
    trainer.train_state, trainer.moved = run["state"], Moved(*run["moved"])
    trainer.scale = scaler.with_held(trainer.scale, run["scale"], trainer.device)
    trainer.window = [
        Micro(r["total"], int(r["items"]), r["scale_before"], bool(r["finite"]), bool(r["applied"]), r["rate"])
        for r in rows
    ]
    trainer.items, trainer.pending = items, None
    trainer.resize(length)
