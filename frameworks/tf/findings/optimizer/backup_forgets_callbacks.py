"""fit with ReduceLROnPlateau of patience 3, stopped after three epochs of a constant loss and continued for one."""

import sys
import tempfile

import keras
import numpy as np

ONES = np.ones((1, 1), np.float32)


def rate(folder: str, stop: int | None = None) -> float:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), lambda target, output: keras.ops.mean(target + 0.0 * output))
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=3)
    backup, stopper = keras.callbacks.BackupAndRestore(folder), keras.callbacks.Callback()
    stopper.on_epoch_begin = lambda epoch, *_: 1 / (epoch != stop)
    try:
        model.fit(ONES, ONES, epochs=4, verbose=0, callbacks=[plateau, backup, stopper])
    except ZeroDivisionError:
        return rate(folder)
    return float(model.optimizer.learning_rate.numpy())


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    print("expected:", expected := f"rate {rate(one)} after four epochs")
    print("seen:    ", seen := f"rate {rate(other, stop=3)} after four epochs")
sys.exit(int(seen != expected))
