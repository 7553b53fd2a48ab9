"""A whole run in one file of `flax.serialization`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import msgpack
from flax import serialization

from frameworks.jax import scaling
from frameworks.jax.steps import Micro, Moved

if TYPE_CHECKING:
    from frameworks.jax.trainer import JaxTrainer

FILE = "run.msgpack"


def _target(trainer: JaxTrainer) -> dict[str, Any]:
    """Everything that tells one moment of the run from another."""
    return {
        "states": trainer.states,
        "scale": scaling.held(trainer.scale),
        "buffers": trainer.moved.buffers,
        "key": trainer.moved.key,
    }


def _window(trainer: JaxTrainer) -> dict[str, Any]:
    return {
        "micro": [dataclasses.asdict(micro) for micro in trainer.window],
        "items": trainer.items,
        "pending": trainer.pending or {},
    }


def save(trainer: JaxTrainer, path: Path) -> None:
    """Writes the run below the folder `path`, which is made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    state = serialization.to_state_dict({"run": _target(trainer), "window": _window(trainer)})
    (path / FILE).write_bytes(serialization.msgpack_serialize(jax.device_get(state)))


def restore(trainer: JaxTrainer, path: Path) -> None:
    """Goes back to what `save` wrote.

    Raises:
        ValueError: the file is missing, cut short, or of a run with other parts; nothing has changed then.
    """
    file = path / FILE
    try:
        state = serialization.msgpack_restore(file.read_bytes())
        target = _target(trainer)
        run = serialization.from_state_dict(target, state["run"])
        window = state["window"]
        micro = [Micro(**window["micro"][key]) for key in sorted(window["micro"], key=int)]
        pending = window["pending"] or None
        key = jax.random.key_data(jax.random.wrap_key_data(jnp.asarray(run["key"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise ValueError(
            f"{file} cannot be restored: {' '.join(str(error).split()) or type(error).__name__}"
        ) from error
    trainer.states = jax.device_put(run["states"], trainer.device)
    trainer.scale = scaling.with_held(trainer.scale, run["scale"], trainer.device)
    trainer.moved = jax.device_put(Moved(dict(run["buffers"]), key), trainer.device)
    trainer.window, trainer.items = micro, int(window["items"])
    trainer.pending = None if pending is None else jax.device_put(pending, trainer.device)
