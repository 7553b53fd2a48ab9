"""XLA on a CPU leaves out roundings to bfloat16 inside a program, so a bfloat16 gradient holds more than bfloat16."""

import sys

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = tf.constant(rng.standard_normal((8, 6, 6, 2)).astype(np.float32))
kernel = tf.Variable(rng.standard_normal((3, 3, 2, 2)).astype(np.float32))


@tf.function(jit_compile=True)
def gradient() -> tf.Tensor:
    with tf.GradientTape() as tape:
        out = tf.nn.conv2d(tf.cast(x, tf.bfloat16), tf.cast(kernel, tf.bfloat16), 1, "VALID")
        loss = tf.reduce_sum(tf.square(tf.cast(out, tf.float32)))
    return tape.gradient(loss, kernel)


found = gradient()
rounded = tf.cast(tf.cast(found, tf.bfloat16), tf.float32)
unrounded = int(tf.math.count_nonzero(rounded != found))
expected, seen = (f"{count} of {tf.size(found)} gradients are no bfloat16 numbers" for count in (0, unrounded))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
