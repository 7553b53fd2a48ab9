"""Saving and loading a run with `tf.train.Checkpoint`, whose files carry a checksum for every tensor.

The checkpoint is given every variable by name, because `tf.train.Checkpoint(model=..., optimizer=...)` finds neither
layers that a Keras model holds in lists or dicts, nor seed generators, nor the optimizers inside a `MultiOptimizer`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import keras
import numpy as np
import tensorflow as tf

from frameworks.keras_common.micro_batches import COLUMNS, KerasMicroBatch, micro_batches_of, rows_of
from frameworks.keras_common.network import BuiltNetwork
from frameworks.tf.core import ways


def _parts(bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, Any]]:
    return {
        "parameters": dict(bound.variables),
        "buffers": bound.buffers | bound.memory,
        "seeds": {path: seed.state for path, seed in bound.seeds.items()},
        "optimizer": {f"{index}-{variable.name}": variable for index, variable in enumerate(optimizer.variables)},
    }


def _rows(windows: Sequence[Sequence[KerasMicroBatch]]) -> tf.Variable:
    """The open windows as (windows, micro-batches, fields)."""
    rows = np.stack([rows_of(own) for own in windows])
    return tf.Variable(rows, trainable=False, shape=tf.TensorShape((None, None, COLUMNS)))


def save_checkpoint(
    path: Path,
    bound: BuiltNetwork,
    optimizer: keras.optimizers.Optimizer,
    windows: Sequence[Sequence[KerasMicroBatch]],
    way: str = "",
) -> None:
    """Writes network, optimizer (its scaler, counters and accumulators among it) and the open windows below `path`."""
    path.mkdir(parents=True, exist_ok=True)
    rows = _rows(windows)
    if way == "weights-file":
        ways.write_files(path, bound, optimizer, rows.numpy())
    else:
        ways.write(way, path, tf.train.Checkpoint(window=rows, **_parts(bound, optimizer)))


def take(
    bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, other: BuiltNetwork, others: keras.optimizers.Optimizer
) -> None:
    """Gives network and optimizer the values that those of another run have now, by Keras' own calls."""
    bound.network.set_weights(other.network.get_weights())
    for path, seed in other.seeds.items():
        bound.seeds[path].state.assign(seed.state)
    store: dict[str, Any] = {}
    others.save_own_variables(store)
    optimizer.load_own_variables(store)


def load_checkpoint(
    path: Path, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, count: int, way: str = ""
) -> list[list[KerasMicroBatch]]:
    """Restores what `save_checkpoint` wrote, by `read` and `assert_consumed`, and returns so many open windows.

    Raises:
        ValueError: the files are missing, cut, changed or of another run, or have another number of open windows.
    """
    rows = _rows([[]])
    try:
        if way == "weights-file":
            rows.assign(ways.read_files(path, bound, optimizer))
        else:
            ways.read(way, path, tf.train.Checkpoint(window=rows, **_parts(bound, optimizer)))
    except (tf.errors.OpError, ValueError, AssertionError, IndexError, OSError, KeyError, BadZipFile) as error:
        reason = str(error).split("\n", 1)[0][:200]
        raise ValueError(f"{path} holds no whole checkpoint of this run: {reason}") from error
    windows = [micro_batches_of(own) for own in rows.numpy()]
    if not any(windows):
        return [[] for _ in range(count)]
    if len(windows) != count:
        raise ValueError(f"{path}: saved inside a window by {len(windows)} ranks, and these are {count}")
    return windows
