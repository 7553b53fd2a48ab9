"""In a graph the backward pass of tf.recompute_grad may read a weight that the update of the same step has changed."""

import sys

import keras
import tensorflow as tf


def gradient(wrap) -> float:
    """What one step of a function that is traced anew subtracts from the first layer's first weight."""
    dense = [keras.layers.Dense(n, kernel_initializer="ones") for n in (8, 1, 2)]
    weights, optimizer = keras.Sequential([keras.Input((3,)), *dense]).weights, keras.optimizers.SGD(0.0625)
    optimizer.build(weights)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for call in (dense[0], tf.nn.relu, dense[1]):
                x = wrap(lambda y, f=call: f(y))(x)
            loss = tf.reduce_sum(dense[2](x) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    step(tf.constant([[0.5, 2.0, 1.0], [0.5, 2.0, 2.0]]) / 16.0)
    return float((1.0 - dense[0].kernel.numpy()[0, 0]) / 0.0625)


expected, seen = gradient(lambda f: f), sorted(gradient(tf.recompute_grad) for _ in range(60))
print(f"expected: a gradient of {expected:g} from each of 60 traces\nseen: {seen[0]:g} to {seen[-1]:g}")
sys.exit(int(seen[-1] - seen[0] > 1e-4 * abs(expected)))
