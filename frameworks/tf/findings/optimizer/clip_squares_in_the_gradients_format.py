"""global_clipnorm squares gradients in their own format, so a float16 gradient of 1024 has an infinite norm."""

import sys

import keras
import tensorflow as tf

weight = keras.Variable([0.0, 0.0], dtype="float16")
keras.optimizers.SGD(1.0, global_clipnorm=0.5).apply([tf.constant([1024.0, 0.0], tf.float16)], [weight])
first, second = (f"{value:g}" for value in weight.numpy())
expected = "weights -0.5 and 0 after gradients of 1024 and 0, clipped to the norm 0.5"
seen = f"weights {first} and {second} after gradients of 1024 and 0, clipped to the norm 0.5"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
