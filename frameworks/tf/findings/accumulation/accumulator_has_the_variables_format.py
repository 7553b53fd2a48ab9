"""Keras makes a gradient accumulator in its variable's format, so one in 16 bits rounds small gradients away."""

import sys

import keras
import tensorflow as tf

weights = []
for name in ("float16", "bfloat16"):
    weight = keras.Variable(0.0, dtype=name)
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=64)
    for gradient in [1.0] + [2.0**-12] * 63:
        optimizer.apply([tf.constant(gradient, name)], [weight])
    weights.append(float(weight))
mean = (1.0 + 63 * 2.0**-12) / 64
template = "weights {} and {} after 64 micro-batches with a mean gradient of {}, at the rate 1"
expected = template.format(*(-float(tf.cast(mean, name)) for name in ("float16", "bfloat16")), mean)
seen = template.format(*weights, mean)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
