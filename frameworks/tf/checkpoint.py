"""Saving and loading a run with `tf.train.Checkpoint`, whose files carry a checksum for every tensor.

The checkpoint is given every variable by name, because `tf.train.Checkpoint(model=..., optimizer=...)` finds neither
layers that a Keras model holds in lists or dicts, nor seed generators, nor the optimizers inside a `MultiOptimizer`.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from frameworks.tf.network import BuiltNetwork
from frameworks.tf.steps import KerasMicroBatch

PREFIX = "run"


def _parts(bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, Any]]:
    return {
        "parameters": dict(bound.variables),
        "buffers": dict(bound.buffers),
        "seeds": {path: seed.state for path, seed in bound.seeds.items()},
        "optimizer": {f"{index}-{variable.name}": variable for index, variable in enumerate(optimizer.variables)},
    }


def _rows(window: list[KerasMicroBatch]) -> tf.Variable:
    rows = np.array([astuple(micro) for micro in window], np.float64).reshape(-1, len(fields(KerasMicroBatch)))
    return tf.Variable(rows, trainable=False, shape=tf.TensorShape((None, len(fields(KerasMicroBatch)))))


def save_checkpoint(
    path: Path, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, window: list[KerasMicroBatch]
) -> None:
    """Writes network, optimizer (its scaler, counters and accumulators among it) and the open window below `path`."""
    path.mkdir(parents=True, exist_ok=True)
    tf.train.Checkpoint(window=_rows(window), **_parts(bound, optimizer)).write(str(path / PREFIX))


def load_checkpoint(path: Path, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer) -> list[KerasMicroBatch]:
    """Restores what `save_checkpoint` wrote, by `read` and `assert_consumed`, and returns the open window.

    Raises:
        ValueError: the files are missing, cut, changed or of another run.
    """
    window = _rows([])
    try:
        tf.train.Checkpoint(window=window, **_parts(bound, optimizer)).read(str(path / PREFIX)).assert_consumed()
    except (tf.errors.OpError, ValueError, AssertionError, IndexError) as error:
        reason = str(error).split("\n", 1)[0][:200]
        raise ValueError(f"{path} holds no whole checkpoint of this run: {reason}") from error
    return [_micro_batch(*(float(value) for value in row)) for row in window.numpy()]


def _micro_batch(
    total: float, items: float, before: float, applied: float, rate: float, mean: float, after: float, good: float
) -> KerasMicroBatch:
    return KerasMicroBatch(total, int(items), before, bool(applied), rate, mean, after, int(good))
