"""Keras 3 squares the slices of a sparse gradient before it adds those of equal rows, so Adam's moment is wrong."""

import sys

import keras
import numpy as np
import tensorflow as tf

layer = keras.layers.Embedding(4, 1)
layer.build(())
optimizer = keras.optimizers.Adam(beta_2=0.5)
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(layer(np.array([2, 2])))
optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
velocity = next(v for v in optimizer.variables if v.name.endswith("velocity"))
template = "second moment {} of a row that is used twice with a slope of 1"
expected, seen = template.format(0.5 * (1.0 + 1.0) ** 2), template.format(float(velocity[2, 0]))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
