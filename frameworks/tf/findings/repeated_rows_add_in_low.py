"""The gradient of a row that a batch uses more than once is added up in the table's format, bfloat16 or float16."""

import sys

import tensorflow as tf

given = tf.constant([[256.0], [1.0], [1.0], [1.0], [1.0], [-256.0]], tf.bfloat16)
table = tf.Variable(tf.zeros((2, 1), tf.bfloat16))
with tf.GradientTape() as tape:
    rows = tf.gather(table, [0, 0, 0, 0, 0, 0])
gradient = tf.convert_to_tensor(tape.gradient(rows, table, output_gradients=given))
seen = float(gradient[0, 0])
print(f"expected: {float(tf.reduce_sum(given))}, the sum of 256, 1, 1, 1, 1 and -256")
print(f"seen: {seen}")
sys.exit(int(seen != 4.0))
