"""A layer of a RematScope that branches on `training` raises: Keras hands it to jax.checkpoint, which traces it."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np


class Doubled(keras.layers.Layer):
    def call(self, x, training=False):
        return 2.0 * x if training else x


inputs = np.ones((1, 2), np.float32)
template = "a layer that doubles in training: [[{} {}]] in evaluation"
expected = template.format(1.0, 1.0)
with keras.RematScope(mode="full"):
    layer = Doubled()
try:
    seen = template.format(*np.asarray(layer(inputs, training=False))[0])
except Exception as error:
    seen = f"a layer that doubles in training: {type(error).__name__} in evaluation"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
