"""The gradient of keras.ops.celu at 0 is 2, where its slope is 1 on either side."""

import sys

import keras
import tensorflow as tf

x = tf.constant([0.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    value = keras.ops.celu(x)
seen = float(tape.gradient(value, x)[0])
print("expected: 1.0")
print(f"seen: {seen}")
sys.exit(seen != 1.0)
