"""The gradient of a row that a batch uses more than once is added up in the table's format, bfloat16 or float16."""

import sys

import tensorflow as tf

seen = {}
for dtype, times in ((tf.bfloat16, 1024), (tf.float16, 8192)):
    table = tf.Variable(tf.zeros((2, 1), dtype))
    with tf.GradientTape() as tape:
        rows = tf.gather(table, tf.zeros(times, tf.int32))
    gradient = tf.convert_to_tensor(tape.gradient(rows, table))
    seen[times] = float(gradient[0, 0])
print("expected: 1024.0 in bfloat16 and 8192.0 in float16, the sums of as many ones")
print(f"seen: {seen[1024]} and {seen[8192]}")
sys.exit(int(seen != {1024: 1024.0, 8192: 8192.0}))
