"""keras.ops.max_pool on JAX raises without strides, whose documented default is the size of the pool."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
import keras

images = keras.ops.ones((1, 4, 4, 1))
expected = tuple(keras.ops.max_pool(images, 2, 2).shape)
try:
    seen = tuple(keras.ops.max_pool(images, 2).shape)
except TypeError:
    seen = "TypeError"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
