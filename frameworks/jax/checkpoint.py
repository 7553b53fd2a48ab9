"""A whole run in one file of `flax.serialization`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import msgpack
from flax import serialization

from frameworks.base import same_parts
from frameworks.jax import scaling
from frameworks.jax.arrays import Flat
from frameworks.jax.scaling import Judged
from frameworks.jax.steps import Micro, Moved

if TYPE_CHECKING:
    from frameworks.jax.trainer import JaxTrainer

FILE = "run.msgpack"


def _run(trainer: JaxTrainer) -> dict[str, Any]:
    """Everything that tells one moment of the run from another, in parts; those that the run has not are left out.

    JMP's scale is one that `flax.serialization` knows no way to save, so its two numbers stand for it.
    """
    parts = {
        "state": trainer.train_state,
        "scale": scaling.held(trainer.scale),
        "buffers": trainer.moved.buffers,
        "key": trainer.moved.key,
        "window": {
            "micro": [dataclasses.asdict(micro) for micro in trainer.window],
            "items": trainer.items,
            "length": trainer.length,
            "pending": trainer.pending,
        },
    }
    return {name: part for name, part in parts.items() if not isinstance(part, dict) or part}


def _names(run: Mapping[str, Any]) -> set[str]:
    """The parts of a run, of which the average of the weights is a field of the train state."""
    return set(run) | ({"average"} if serialization.to_state_dict(run["state"])["average"] is not None else set())


def save(trainer: JaxTrainer, path: Path) -> None:
    """Writes the run below the folder `path`, which is made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    (path / FILE).write_bytes(serialization.to_bytes(_run(trainer)))


def restore(trainer: JaxTrainer, path: Path) -> None:
    """Goes back to what `save` wrote.

    Raises:
        ValueError: the file is missing, cut short, or of a run with other parts; nothing has changed then.
    """
    file = path / FILE
    try:
        saved = serialization.msgpack_restore(file.read_bytes())
        own = _run(trainer)
        same_parts(file, _names(saved), _names(own))
        window = saved["window"]
        micro = [Micro(**window["micro"][key]) for key in sorted(window["micro"], key=int)]
        parts = [name for name in own if name != "window"]
        run = {name: serialization.from_state_dict(own[name], saved[name]) for name in parts}
        pending = window["pending"] and _pending(trainer, window["pending"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise ValueError(
            f"{file} cannot be restored: {' '.join(str(error).split()) or type(error).__name__}"
        ) from error
    trainer.train_state = jax.device_put(run["state"], trainer.device)
    trainer.scale = scaling.with_held(trainer.scale, run.get("scale", {}), trainer.device)
    trainer.moved = jax.device_put(Moved(run.get("buffers", {}), run["key"]), trainer.device)
    trainer.window, trainer.items = micro, int(window["items"])
    trainer.resize(int(window["length"]))
    trainer.pending = jax.device_put(pending, trainer.device)


def _pending(trainer: JaxTrainer, saved: Mapping[str, Any]) -> tuple[Flat, Judged | None]:
    gradients, judged = saved["0"], saved["1"]
    if judged is None:
        return gradients, None
    return gradients, Judged(judged["finite"], serialization.from_state_dict(trainer.scale, judged["scale"]))
