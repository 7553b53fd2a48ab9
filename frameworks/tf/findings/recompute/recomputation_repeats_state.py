"""keras.remat runs a layer's state changes again: dropout draws another mask, batch norm's statistics move twice."""

import sys

import keras
import numpy as np
import tensorflow as tf


def measure(wrap):
    """The number of gradients of another mask than the forward's, and batch norm's mean after a step."""
    x, weight = tf.ones((4, 64)), keras.Variable(np.ones(64, np.float32))
    drop, norm = keras.layers.Dropout(0.5, seed=0), keras.layers.BatchNormalization(momentum=0.5)
    run = wrap(lambda inputs: drop(norm(inputs, training=True) + weight.value, training=True))
    with tf.GradientTape() as tape:
        outputs = run(x)
    gradient = tape.gradient(outputs, weight.value).numpy()
    return int(np.sum(gradient != 2.0 * np.sum(outputs.numpy() != 0, axis=0))), float(norm.moving_mean[0])


template = "{} of 64 gradients of other masks than the forward's, a moving mean of {}"
expected, seen = (template.format(*measure(wrap)) for wrap in (lambda function: function, keras.remat))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
