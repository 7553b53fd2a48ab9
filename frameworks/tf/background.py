"""Saves of values by `tf.train.Checkpoint`, in the background by `CheckpointOptions`."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from frameworks.contract import BackgroundRule, Gate, Kind, LiveValues, SaveSeries, ValueSaver

RULE = BackgroundRule("next-save", "waits", "finished", "finishes")
BACKGROUND = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)


class Number(tf.train.experimental.PythonState):
    """A Python number that a checkpoint holds."""

    def __init__(self, value: float) -> None:
        self.value = value

    def serialize(self) -> str:
        return str(self.value)

    def deserialize(self, text: str) -> None:
        self.value = float(text)


class GatedState(tf.train.experimental.PythonState):
    """An entry of a checkpoint at which the writer is held: the thread that writes asks for its text."""

    def __init__(self) -> None:
        self.gates: deque[Gate] = deque()

    def serialize(self) -> str:
        if self.gates:
            self.gates.popleft().hold("data")
        return ""

    def deserialize(self, text: str) -> None:
        pass


class TensorFlowValues(LiveValues):
    """Variables and numbers."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        return Number(value) if kind == "number" else tf.Variable(np.full(size, value, np.float32))

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        if kind == "number":
            current.value = value
        else:
            current.assign(tf.fill(current.shape, value))
        return current

    def to_array(self, kind: Kind, current: Any) -> Array:
        return np.array(current.value if kind == "number" else current.numpy(), np.float32)


class TensorFlowSeries(SaveSeries):
    """Saves of one checkpoint object, by a `CheckpointManager` or by `Checkpoint.write`."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._tree, self._gate = folder, values.tree, GatedState()
        self._root = tf.train.Checkpoint(gate=self._gate, **self._tree)
        options = {"max_to_keep": None, "checkpoint_name": ""}
        self._manager = tf.train.CheckpointManager(self._root, folder, **options) if shared == "manager" else None

    def save(self, step: int, gate: Gate | None = None) -> None:
        for name, value in self._tree.items():
            setattr(self._root, name, value)
        self._gate.gates.append(gate or Gate())
        options = None if gate is None else BACKGROUND
        try:
            if self._manager is None:
                self._root.write(self._folder / str(step), options)
            else:
                self._manager.save(step, options=options)
        except Exception:
            self._gate.gates.clear()
            raise

    def wait(self) -> None:
        (self._root if self._manager is None else self._manager).sync()

    def latest(self) -> int | None:
        path = tf.train.latest_checkpoint(self._folder)
        return None if path is None else int(path.rpartition("-")[2])

    def load(self, step: int, target: LiveValues) -> None:
        path = self._folder / (str(step) if self._manager is None else f"-{step}")
        try:
            tf.train.Checkpoint(**target.tree).read(path).assert_existing_objects_matched()
        except (tf.errors.OpError, ValueError, AssertionError) as error:
            raise ValueError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error

    def close(self) -> None:
        self.wait()


SAVER = ValueSaver(TensorFlowValues, TensorFlowSeries, ("tensor", "number"), ("manager", "checkpoint"), ("data",), RULE)
