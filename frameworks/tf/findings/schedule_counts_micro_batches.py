"""With gradient_accumulation_steps a Keras learning rate schedule counts micro-batches, as the documentation says."""

import sys

import keras
import tensorflow as tf

rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.5])
weight = keras.Variable(0.0)
optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=2)
for _ in range(2):
    optimizer.apply([tf.constant(1.0)], [weight])
seen = float(weight)
print("expected: -1.0, the first update at the schedule's first rate, as with the whole batch")
print(f"seen: {seen}, at the rate of step 1, the second micro-batch")
sys.exit(int(seen != -1.0))
