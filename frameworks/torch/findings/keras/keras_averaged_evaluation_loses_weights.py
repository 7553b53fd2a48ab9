"""After Model.predict with the callback SwapEMAWeights the model keeps the average of its weights."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

x = np.ones((1, 1), np.float32)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "linear", False, "ones")])
model.compile(keras.optimizers.SGD(0.0, use_ema=True), "mse")
model.train_on_batch(x, x)
model.set_weights([np.full((1, 1), 0.5)])
model.predict(x, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
template = "weight {} after Model.predict with an average of 1"
expected, seen = template.format(0.5), template.format(float(model.get_weights()[0][0, 0]))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
