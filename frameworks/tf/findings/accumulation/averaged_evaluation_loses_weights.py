"""SwapEMAWeights leaves the average in the model after Model.predict, and rounds the weights away in Model.evaluate."""

import sys

import keras
import numpy as np

x = np.ones((1, 1), np.float32)
weights = []
for verb, data in (("predict", {"x": x}), ("evaluate", {"x": x, "y": x})):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0, use_ema=True), "mse")
    model.train_on_batch(x, x)
    model.set_weights([np.full((1, 1), 1e-8)])
    getattr(model, verb)(**data, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
    weights.append(float(model.get_weights()[0][0, 0]))
template = "weight {:.2g} after Model.predict, {:.2g} after Model.evaluate, both with an average of 1"
expected, seen = template.format(1e-8, 1e-8), template.format(*weights)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
