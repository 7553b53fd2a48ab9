"""Saves of values by Orbax, in the background by `AsyncCheckpointer` and `CheckpointManager`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from frameworks.contract import BackgroundRule, Gate, Kind, LiveValues, SaveSeries, ValueSaver

RULE = BackgroundRule("wait", "waits", "running", "loses")
_overwrite = jax.jit(lambda array, value: array * 0 + value, donate_argnums=0)


class JaxValues(LiveValues):
    """Arrays whose buffers are donated, and values of NumPy and Python."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        return jax.device_put(np.full(size, value, np.float32)) if kind == "tensor" else super().make(kind, value, size)

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        return _overwrite(current, value) if kind == "tensor" else super().overwrite(kind, current, value)


@dataclass
class _GatedFuture:
    """A further future of a save, for which Orbax waits before it commits the files."""

    gate: Gate

    def result(self, timeout: float | None = None) -> None:
        self.gate.hold("commit")


class GatedHandler(ocp.StandardCheckpointHandler):
    """The handler of trees of arrays, held at a gate."""

    async def async_save(self, directory: Any, args: Any) -> Any:
        return [_GatedFuture(args.gate), *(await super().async_save(directory, args=args))]


@ocp.args.register_with_handler(GatedHandler, for_save=True, for_restore=True)
@dataclass
class GatedSave(ocp.args.StandardSave):
    """A tree to save and the gate of its writer; a manager asks for arguments that restore, too."""

    gate: Gate = None  # type: ignore[assignment]


class OrbaxSeries(SaveSeries):
    """Saves of one tree by one `CheckpointManager` or one `AsyncCheckpointer`."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._values = folder.absolute(), values
        handler, self._managed = GatedHandler(), shared == "manager"
        self._saver = (
            ocp.CheckpointManager(self._folder, item_handlers=handler)
            if self._managed
            else ocp.AsyncCheckpointer(handler)
        )

    def save(self, step: int, gate: Gate | None = None) -> None:
        path, tree = self._folder / str(step), self._values.tree
        if gate is None:
            ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(path, args=ocp.args.StandardSave(tree), force=True)
        elif not self._managed:
            self._saver.save(path, args=GatedSave(tree, gate=gate), force=True)
        elif not self._saver.save(step, args=GatedSave(tree, gate=gate)):
            raise ValueError(f"CheckpointManager has step {step} already")

    def wait(self) -> None:
        self._saver.wait_until_finished()

    def latest(self) -> int | None:
        return self._saver.latest_step() if self._managed else None

    def load(self, step: int, target: LiveValues) -> None:
        path = self._folder / str(step)
        path = path / "default" if (path / "default").exists() else path
        try:
            target.tree = ocp.StandardCheckpointer().restore(path, target.tree)
        except Exception as error:  # Orbax raises `Exception` itself for some unreadable files
            raise ValueError(f"{path} cannot be restored: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        self._saver.close()


SAVER = ValueSaver(
    JaxValues, OrbaxSeries, ("tensor", "array", "list", "number"), ("manager", "checkpointer"), ("commit",), RULE
)
