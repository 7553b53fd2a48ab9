"""Saving and loading a run with `tf.train.Checkpoint`, whose files carry a checksum for every tensor."""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from frameworks.tf.network import Network
from frameworks.tf.steps import Micro

PREFIX = "run"


def _checkpoint(network: Network, optimizer: keras.optimizers.Optimizer, window: tf.Variable) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(network=network, optimizer=optimizer, window=window)


def _rows(window: list[Micro]) -> tf.Variable:
    rows = np.array([astuple(micro) for micro in window], np.float64).reshape(-1, len(fields(Micro)))
    return tf.Variable(rows, trainable=False, shape=tf.TensorShape((None, len(fields(Micro)))))


def save_checkpoint(
    path: Path, network: Network, optimizer: keras.optimizers.Optimizer, window: list[Micro]
) -> None:
    """Writes network, optimizer (its scaler, counters and accumulators among it) and the open window below `path`."""
    path.mkdir(parents=True, exist_ok=True)
    _checkpoint(network, optimizer, _rows(window)).write(str(path / PREFIX))


def load_checkpoint(path: Path, network: Network, optimizer: keras.optimizers.Optimizer) -> list[Micro]:
    """Restores what `save_checkpoint` wrote and returns the open window.

    Raises:
        ValueError: the files are missing, cut, changed or of another run; nothing has changed then.
    """
    prefix = str(path / PREFIX)
    window = _rows([])
    variables = [*network.variables, *optimizer.variables]
    former = [variable.numpy() for variable in variables]
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        status = _checkpoint(network, optimizer, window).read(prefix)
        status.assert_existing_objects_matched()
        status.assert_consumed()
    except (tf.errors.OpError, ValueError, AssertionError, RuntimeError, IndexError, TypeError) as error:
        for variable, value in zip(variables, former, strict=True):
            variable.assign(value)
        raise ValueError(f"{path} holds no whole checkpoint of this run: {error}") from error
    return [Micro(*(float(value) for value in row)) for row in window.numpy()]
