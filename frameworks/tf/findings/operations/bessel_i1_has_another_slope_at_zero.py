"""The gradient of the Bessel function I1 at 0 is 1, where its series x/2 + x^3/16 has the slope 1/2."""

import sys

import tensorflow as tf

x = tf.constant([0.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    value = tf.math.special.bessel_i1(x)
seen = float(tape.gradient(value, x)[0])
print("expected: 0.5")
print(f"seen: {seen}")
sys.exit(seen != 0.5)
