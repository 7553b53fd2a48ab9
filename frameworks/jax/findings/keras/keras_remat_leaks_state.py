"""What keras.remat recomputes may hold no layer that changes state, such as dropout: a tracer leaves jax.checkpoint."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np


class Segment(keras.layers.Layer):
    def build(self, shape):
        self.drop = keras.layers.Dropout(0.5, seed=0)

    def call(self, x, training=False):
        return keras.remat(lambda inputs: self.drop(inputs, training=training))(x)


inputs = keras.Input((4,))
model = keras.Model(inputs, keras.layers.Dense(1)(Segment()(inputs)))
model.compile("sgd", "mse")
expected = "one step of training with dropout inside keras.remat: done"
try:
    model.train_on_batch(np.ones((2, 4), np.float32), np.ones((2, 1), np.float32))
    seen = expected
except Exception as error:
    seen = f"one step of training with dropout inside keras.remat: {type(error).__name__}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
