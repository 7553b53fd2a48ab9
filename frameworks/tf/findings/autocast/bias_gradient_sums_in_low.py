"""On a CPU the gradient of a bfloat16 bias is summed in bfloat16, where tf.reduce_sum of the same values is not."""

import sys

import tensorflow as tf

rows = tf.ones((16384, 1), tf.bfloat16)
bias = tf.Variable([0.0], dtype=tf.bfloat16)
with tf.GradientTape() as tape:
    output = tf.nn.bias_add(tf.zeros(rows.shape, tf.bfloat16), bias)
seen = float(tape.gradient(output, bias, output_gradients=rows)[0])
print(f"expected: {float(tf.reduce_sum(rows))}, the sum of 16,384 ones")
print(f"seen: {seen}")
sys.exit(int(seen != 16384.0))
