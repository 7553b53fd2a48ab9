"""On a CPU the gradient of a bfloat16 bias is summed in bfloat16, where tf.reduce_sum of the same values is not."""

import sys

import tensorflow as tf

rows = tf.constant([[256.0], [1.0], [1.0], [1.0], [1.0], [-256.0]], tf.bfloat16)
bias = tf.Variable([0.0], dtype=tf.bfloat16)
with tf.GradientTape() as tape:
    output = tf.nn.bias_add(tf.zeros((6, 1), tf.bfloat16), bias)
seen = float(tape.gradient(output, bias, output_gradients=rows)[0])
print(f"expected: {float(tf.reduce_sum(rows))}, the sum of 256, 1, 1, 1, 1 and -256")
print(f"seen: {seen}")
sys.exit(int(seen != 4.0))
