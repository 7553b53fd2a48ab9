"""Model.fit raises for a float8 layer and an optimizer with use_ema, for the layer's scales have no average."""

import sys

import keras
import numpy as np

policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=4)
model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(16, dtype=policy)])
model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
inputs = np.ones((16, 16), np.float32)
try:
    model.fit(inputs, inputs, verbose=0)
    seen = "a trained model"
except ValueError as error:
    seen = f"ValueError: {str(error).splitlines()[0]}"

print("expected: a trained model")
print(f"seen: {seen}")
sys.exit(seen != "a trained model")
