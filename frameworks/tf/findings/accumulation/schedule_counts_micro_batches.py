"""With gradient_accumulation_steps a Keras learning rate schedule counts micro-batches, as the documentation says."""

import sys

import keras
import tensorflow as tf

rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.5])
weight = keras.Variable(0.0)
optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=2)
for _ in range(2):
    optimizer.apply([tf.constant(1.0)], [weight])
expected, seen = (f"weight {value} after one update; the schedule begins at 1" for value in (-1.0, float(weight)))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
