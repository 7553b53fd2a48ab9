"""tf.recompute_grad of a layer raises in a loop of a graph, which without it works."""

import sys

import keras
import tensorflow as tf

layer = keras.layers.Dense(2, kernel_initializer="ones")
layer.build((None, 2))


def gradient(function):
    @tf.function
    def step(x):
        total = tf.zeros([])
        with tf.GradientTape() as tape:
            for _ in tf.range(2):
                total += tf.reduce_sum(function(x))
        return tape.gradient(total, layer.kernel)

    try:
        return tf.convert_to_tensor(step(tf.ones([1, 2]))).numpy().tolist()
    except ValueError:
        return "ValueError"


expected, seen = gradient(lambda x: layer(x)), gradient(tf.recompute_grad(lambda x: layer(x)))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
