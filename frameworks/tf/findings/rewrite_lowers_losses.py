"""The oneDNN rewrite to bfloat16 takes in what follows a product: the loss, its mean and softmax are bfloat16 too."""

import sys

import keras
import tensorflow as tf

tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
mean_squared_error = keras.losses.MeanSquaredError()


@tf.function
def loss(x: tf.Tensor, weight: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return mean_squared_error(y, tf.matmul(x, weight))


seen = float(loss(tf.ones((3000, 8)), tf.ones((8, 4)), tf.zeros((3000, 4))))
print("expected: 64.0, the mean of 12,000 squares of 8, for a loss is float32 under mixed precision")
print(f"seen: {seen}")
sys.exit(int(seen != 64.0))
