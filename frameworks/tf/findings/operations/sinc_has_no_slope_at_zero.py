"""The gradient of keras.ops.sinc at 0 is NaN, where its slope is 0."""

import sys

import keras
import tensorflow as tf

x = tf.constant([0.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    value = keras.ops.sinc(x)
seen = float(tape.gradient(value, x)[0])
print("expected: 0.0")
print(f"seen: {seen}")
sys.exit(seen != 0.0)
