"""Compiled by XLA, the gradient of a resize of float16 values is float32, and that of a tanh before it fails."""

import sys

import tensorflow as tf


def gradient(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.image.resize(tf.tanh(x), (5, 3)))
    return tape.gradient(loss, x)


x = tf.ones((1, 2, 2, 1), tf.float16)
print(f"expected: {tf.function(gradient)(x).numpy().ravel()}")
try:
    seen = str(tf.function(gradient, jit_compile=True)(x).numpy().ravel())
except tf.errors.InternalError as error:
    seen = f"InternalError: {error.message[:87]}"
print(f"seen: {seen}")
sys.exit(seen.startswith("InternalError"))
