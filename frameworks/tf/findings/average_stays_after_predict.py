"""SwapEMAWeights does not swap the weights back after Model.predict, so the model goes on with their average."""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "linear", False, "zeros")])
model.compile(keras.optimizers.SGD(0.125, use_ema=True, ema_momentum=0.5), "mse")
x, y = np.ones((1, 1), np.float32), np.full((1, 1), 8.0, np.float32)
for _ in range(2):
    model.train_on_batch(x, y)
expected = f"weight {float(model.get_weights()[0][0, 0]):.6g} after Model.predict with SwapEMAWeights"
model.predict(x, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
seen = f"weight {float(model.get_weights()[0][0, 0]):.6g} after Model.predict with SwapEMAWeights"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
