"""BackupAndRestore saves no other callback, so a ReduceLROnPlateau counts its patience anew when fit is continued."""

import contextlib
import sys
import tempfile

import keras
import numpy as np


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise InterruptedError


def rate(folder, *others):
    x = np.ones((1, 1), np.float32)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), lambda target, output: keras.ops.mean(target + 0.0 * output))
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=3)
    with contextlib.suppress(InterruptedError):
        model.fit(x, x, epochs=4, verbose=0, callbacks=[plateau, keras.callbacks.BackupAndRestore(folder), *others])
    return float(model.optimizer.learning_rate.numpy())


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    print("expected:", expected := f"rate {rate(one)} after four epochs")
    rate(other, Stop())
    print("seen:    ", seen := f"rate {rate(other)} after four epochs")
sys.exit(int(seen != expected))
