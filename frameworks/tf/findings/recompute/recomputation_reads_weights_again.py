"""tf.recompute_grad reads variables again in the backward pass, and says nothing where they have changed since."""

import sys

import tensorflow as tf

weight = tf.Variable(2.0)
square = tf.recompute_grad(lambda x: x * weight * weight)
with tf.GradientTape() as tape:
    value = square(tf.constant(1.0))
weight.assign(6.0)
template = "slope {} of w**2, of which the forward pass gave {}"
expected, seen = (template.format(slope, float(value)) for slope in (4.0, float(tape.gradient(value, weight))))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
