"""The oneDNN rewrite to bfloat16 takes in what follows a product, the loss and its mean among it."""

import sys

import keras
import tensorflow as tf

tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
mean_squared_error = keras.losses.MeanSquaredError()


@tf.function
def loss(x: tf.Tensor, weight: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return mean_squared_error(y, tf.matmul(x, weight))


value = float(loss(tf.ones((3000, 8)), tf.ones((8, 4)), tf.zeros((3000, 4))))
expected, seen = (f"loss {number}, a mean of 12,000 squares of 8" for number in (64.0, value))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
