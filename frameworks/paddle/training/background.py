"""Saves of values by `paddle.distributed.save_state_dict`, whose saves in the background need a GPU or XPU."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed import load_state_dict, save_state_dict

from fixtures.arrays import Array
from frameworks.contract import Gate, Kind, LiveValues, SaveSeries, ValueSaver

NO_BACKGROUND = "on a CPU paddle.distributed.save_state_dict(async_save=True) raises TypeError: device should be gpu"


class PaddleValues(LiveValues):
    """Tensors."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        return paddle.full([size], value, "float32")

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        return current.fill_(value)

    def to_array(self, kind: Kind, current: Any) -> Array:
        return np.array(current.numpy())


class PaddleSeries(SaveSeries):
    """Saves of one dictionary of tensors, each in a folder of its own."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._values = folder, values

    def save(self, step: int, gate: Gate | None = None) -> None:
        save_state_dict(self._values.tree, str(self._folder / str(step)))

    def load(self, step: int, target: LiveValues) -> None:
        path = self._folder / str(step)
        try:
            load_state_dict(target.tree, str(path))
        except Exception as error:
            raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def saves_in_background() -> bool:
    """Returns whether a save in the background can be read."""
    saved, loaded = paddle.ones([4]), paddle.zeros([4])
    with tempfile.TemporaryDirectory() as folder:
        save_state_dict({"value": saved}, folder, async_save=True)
        load_state_dict({"value": loaded}, folder)
    return bool((loaded == saved).all())


SAVER = ValueSaver(PaddleValues, PaddleSeries, ("tensor",), ("none",))
