"""A tensor that is passed by keyword to a recomputed function gets no gradient in eager mode, and nothing says so."""

import sys

import keras
import tensorflow as tf

x, w = tf.constant(3.0), tf.constant(2.0)
with tf.GradientTape() as tape:
    tape.watch((x, w))
    value = keras.remat(lambda x, w: x * w)(x, w=w) + w
gradient = tape.gradient(value, w)
expected = "slope 4.0 of x * w + w by w at x = 3"
seen = f"slope {None if gradient is None else float(gradient)} of x * w + w by w at x = 3"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
