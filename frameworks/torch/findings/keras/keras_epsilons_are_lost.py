"""Keras' optimizers cast epsilons and betas to the weights' format, where gradients of zero give 0/0."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras

seen = {}
for name, dtype in {"Adamax": "float16", "Adafactor": "float16", "Lamb": "bfloat16"}.items():
    weight = keras.Variable([1.0], dtype=dtype)
    optimizer = getattr(keras.optimizers, name)(0.0625)
    optimizer.apply([keras.ops.zeros(1, dtype)], [weight])
    seen[name, dtype] = float(weight.numpy()[0])
print("expected: 1.0, a gradient of zero moves nothing")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {1.0} else 1)
