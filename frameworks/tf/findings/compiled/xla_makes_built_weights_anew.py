"""A layer that was built inside its own tf.function gets other weights when XLA compiles a function that calls it."""

import sys

import keras
import tensorflow as tf


class Compiled(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(2)

    @tf.function
    def call(self, x):
        return self.inner(x)


layer, x = Compiled(), tf.ones([1, 2])
expected = layer(x).numpy().tolist()
seen = tf.function(layer, jit_compile=True)(x).numpy().tolist()
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
