"""keras.remat recomputes outside the layer's __call__, so layers inside no longer inherit `training=True`."""

import sys

import keras
import tensorflow as tf


class Block(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.noise = keras.layers.GaussianDropout(0.5, seed=0)
        self.recomputed = keras.remat(self.body)

    def body(self, x: tf.Tensor) -> tf.Tensor:
        return self.noise(x)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.recomputed(x)


block, x = Block(), tf.ones((1, 64))
with tf.GradientTape() as tape:
    tape.watch(x)
    outputs = block(x, training=True)
same = int(tf.reduce_sum(tf.cast(tape.gradient(outputs, x) == 1.0, tf.int32)))
expected, seen = (f"{count} of 64 slopes are 1, in a layer that multiplies by noise in training" for count in (0, same))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
