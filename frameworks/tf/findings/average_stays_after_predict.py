"""SwapEMAWeights does not swap the weights back after Model.predict, so the model goes on with their average."""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "linear", False, "zeros")])
model.compile(keras.optimizers.SGD(0.125, use_ema=True, ema_momentum=0.5), "mse")
x, y = np.ones((1, 1), np.float32), np.full((1, 1), 8.0, np.float32)
for _ in range(2):
    model.train_on_batch(x, y)
before = float(model.get_weights()[0][0, 0])
model.predict(x, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
after = float(model.get_weights()[0][0, 0])
print(f"expected: {before:.6g}, the weight as it was before the prediction")
print(f"seen: {after:.6g}")
sys.exit(int(after != before))
