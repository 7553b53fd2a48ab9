"""tf.recompute_grad reads variables again in the backward pass, and says nothing where they have changed since."""

import sys

import tensorflow as tf

weight = tf.Variable(2.0)
square = tf.recompute_grad(lambda x: x * weight * weight)
with tf.GradientTape() as tape:
    value = square(tf.constant(1.0))
weight.assign(6.0)
seen = float(tape.gradient(value, weight))
print(f"expected: 4.0, the slope 2 * w of the value {float(value)} at the weight 2 of the forward pass, or an error")
print(f"seen: {seen}")
sys.exit(int(seen != 4.0))
