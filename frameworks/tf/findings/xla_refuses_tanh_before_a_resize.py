"""The gradient of a float16 tanh in front of a bilinear resize, in a graph and compiled by XLA."""

import sys

import tensorflow as tf


def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        resized = tf.image.resize(tf.tanh(x), (8, 8), "bilinear")
        loss = tf.reduce_sum(resized)
    return tape.gradient(loss, x)


x = tf.zeros((1, 4, 4, 3), tf.float16)
expected = float(tf.function(gradient)(x)[0, 0, 0, 0])
try:
    seen = float(tf.function(gradient, jit_compile=True)(x)[0, 0, 0, 0])
except tf.errors.InternalError as error:
    seen = f"InternalError, {error.message[:60]}"
print(f"expected: a gradient of {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
