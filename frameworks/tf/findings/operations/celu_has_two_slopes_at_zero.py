"""keras.ops.celu passes the gradient at 0 on twice."""

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
