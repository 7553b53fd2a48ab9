"""The gradient of xlogy by x is 0 at x = 0, and that of pow by a base of 0 is NaN for the exponent 0."""

import sys

import tensorflow as tf

seen = {}
for function, second in ((tf.math.xlogy, 2.0), (tf.pow, 0.0)):
    x = tf.constant(0.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x, second)
    seen[function.__name__] = float(tape.gradient(value, x))
print("expected: log 2 = 0.6931 for xlogy(x, 2), and 0.0 for x ** 0")
print(f"seen: {seen}")
sys.exit(0 if abs(seen["xlogy"] - 0.6931) < 1e-3 and seen["pow"] == 0.0 else 1)
