"""Keras' schedule that follows a metric: its hooks, and `fit` where it is interrupted and continued."""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import keras
import numpy as np
from keras.callbacks import BackupAndRestore, Callback, ReduceLROnPlateau

from fixtures.plateau import Plateau
from frameworks.base import takes
from frameworks.contract import Capability, Unsupported


class _Rates(Callback):
    """Reads the rate after every epoch, and interrupts `fit` before the epoch `saved`."""

    def __init__(self, saved: int | None = None) -> None:
        super().__init__()
        self.saved, self.rates = saved, list[float]()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.saved:
            raise InterruptedError

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate after each epoch, whose loss is its metric; `fit` is interrupted after `saved` epochs.

    A new model goes on by `BackupAndRestore`, as its documentation says.

    Raises:
        Unsupported: PLATEAU, for a relative threshold.
    """
    if plateau.relative:
        attempt = partial(takes, ReduceLROnPlateau, "threshold_mode", "relative")
        raise Unsupported(Capability.PLATEAU, "keras.callbacks.ReduceLROnPlateau has an absolute threshold", attempt)
    if saved is None:
        return tuple(_hooked(plateau, metrics))
    with tempfile.TemporaryDirectory() as folder:
        first = _fitted(plateau, metrics, 0, _Rates(saved), BackupAndRestore(folder))
        return (*first, *_fitted(plateau, metrics, saved, _Rates(), BackupAndRestore(folder)))


def _hooked(plateau: Plateau, metrics: Sequence[float]) -> list[float]:
    """Rates by the hooks that `fit` calls."""
    callbacks = keras.callbacks.CallbackList([_follower(plateau), reader := _Rates()], model=_model())
    callbacks.on_train_begin()
    for epoch, metric in enumerate(metrics):
        callbacks.on_epoch_end(epoch, {"loss": metric})
    return reader.rates


def _fitted(plateau: Plateau, metrics: Sequence[float], start: int, reader: _Rates, backup: Callback) -> list[float]:
    """Rates of the epochs of one call of `fit`, from epoch `start` on."""
    rows = ((np.ones((1, 1), np.float32), np.full((1, 1), metric, np.float32)) for metric in metrics[start:])
    callbacks = [_follower(plateau), reader, backup]
    with suppress(InterruptedError):
        _model().fit(rows, steps_per_epoch=1, epochs=len(metrics), verbose=0, shuffle=False, callbacks=callbacks)
    return reader.rates


def _model() -> keras.Model:
    """A model whose loss is its target, at a rate of 1."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(1.0), lambda target, output: keras.ops.mean(target + 0.0 * output))
    return model


def _follower(plateau: Plateau) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(
        "loss",
        plateau.factor,
        plateau.patience,
        mode=plateau.mode,
        min_delta=plateau.threshold,
        cooldown=plateau.cooldown,
        min_lr=plateau.minimum,
    )
