"""Keras makes a gradient accumulator in its variable's format, so one in 16 bits rounds small gradients away."""

import sys

import keras
import tensorflow as tf

seen = []
for name in ("float16", "bfloat16"):
    weight = keras.Variable(0.0, dtype=name)
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=64)
    for gradient in [1.0] + [2.0**-12] * 63:
        optimizer.apply([tf.constant(gradient, name)], [weight])
    seen.append(float(weight))
mean = (1.0 + 63 * 2.0**-12) / 64
expected = [-float(tf.cast(mean, name)) for name in ("float16", "bfloat16")]
print(f"expected: {expected[0]} and {expected[1]}, minus the mean of 1 and 63 times 2**-12 in the two formats")
print(f"seen: {seen[0]} and {seen[1]}")
sys.exit(int(seen != expected))
