"""keras.remat runs a layer's state changes again: dropout draws another mask, batch norm's statistics move twice."""

import sys

import keras
import numpy as np
import tensorflow as tf

x = np.ones((4, 64), np.float32)
counts = []
for wrap in (lambda f: f, keras.remat):
    drop, norm = keras.layers.Dropout(0.5, seed=0), keras.layers.BatchNormalization(momentum=0.5)
    weight = keras.Variable(np.ones(64, np.float32))
    run = wrap(lambda inputs, d=drop, n=norm, w=weight: d(n(inputs, training=True) + w.value, training=True))
    with tf.GradientTape() as tape:
        outputs = run(tf.constant(x))
    gradient = tape.gradient(outputs, weight.value).numpy()
    changed = int(np.sum(gradient != 2.0 * np.sum(outputs.numpy() != 0, axis=0)))
    counts.append((changed, float(norm.moving_mean[0])))
template = "{} of 64 gradients of other masks than the forward's, a moving mean of {}"
expected, seen = (template.format(*pair) for pair in counts)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
