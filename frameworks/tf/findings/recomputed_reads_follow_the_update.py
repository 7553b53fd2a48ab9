"""In a graph the backward pass of tf.recompute_grad may read a weight that the update of the same step has changed."""

import sys

import keras
import numpy as np
import tensorflow as tf


def gradient(recompute: bool) -> float:
    """What one step of a function that is traced anew subtracts from the first layer's first weight."""
    hidden, last, head = keras.layers.Dense(8), keras.layers.Dense(1), keras.layers.Dense(2)
    for layer, width in ((hidden, 3), (last, 8), (head, 1)):
        layer.build((None, width))
    weights = [w for layer in (hidden, last, head) for w in layer.trainable_variables]
    for weight in weights:
        weight.assign(np.full(weight.shape, 0.25, "float32"))
    optimizer = keras.optimizers.SGD(0.0625)
    optimizer.build(weights)
    calls = (hidden, keras.layers.Activation("relu"), last)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for call in calls:
                x = (tf.recompute_grad(lambda y, f=call: f(y)) if recompute else call)(x)
            loss = tf.reduce_sum(head(x) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    step(tf.constant([[0.5, 2.0, 1.0], [0.5, 2.0, 2.0]]))
    return float((0.25 - hidden.kernel.numpy()[0, 0]) / 0.0625)


expected = gradient(recompute=False)
seen = {}
for _ in range(60):
    value = gradient(recompute=True)
    seen[value] = seen.get(value, 0) + 1
print(f"expected: a gradient of {expected:g} from each of 60 traces of one step")
print("seen: " + ", ".join(f"{value:g} from {count}" for value, count in seen.items()))
sys.exit(int(any(abs(value - expected) > 1e-4 * abs(expected) for value in seen)))
