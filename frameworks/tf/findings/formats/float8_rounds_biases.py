"""A float8 layer of Keras under a float32 policy rounds its bias to bfloat16, and the bias's gradient too."""

import sys

import keras
import numpy as np

policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=4)
layer = keras.layers.Dense(16, dtype=policy)
layer.build((None, 16))
layer.bias.assign(np.full(16, 1.001, np.float32))
seen = float(layer(np.zeros((1, 16), np.float32))[0, 0])

print("expected: 1.001, for the product is 0 and the layer computes in float32")
print(f"seen: {seen:.6g}")
sys.exit(abs(seen - 1.001) > 1e-6)
