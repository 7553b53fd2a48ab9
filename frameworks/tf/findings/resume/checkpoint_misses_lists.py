"""tf.train.Checkpoint leaves out layers that a Keras 3 model holds in lists or dicts, and its restore is content."""

import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf


class Model(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stack = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.stack[0](x)


models = [Model() for _ in range(2)]
for model in models:
    model(np.ones((1, 1)))
models[0].stack[0].kernel.assign([[5.0]])
folder = tempfile.TemporaryDirectory()
path = tf.train.Checkpoint(model=models[0]).save(f"{folder.name}/run")
tf.train.Checkpoint(model=models[1]).restore(path).assert_consumed()
expected, seen = "weight 5.0 after restore", f"weight {float(models[1].stack[0].kernel[0, 0])} after restore"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
