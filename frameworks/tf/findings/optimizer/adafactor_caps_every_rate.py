"""Keras' Adafactor takes at most one over the root of the step as its rate, with relative_step=False too."""

import sys

import keras
import numpy as np

weight = keras.Variable(np.ones((1,), "float32"))
optimizer = keras.optimizers.Adafactor(1.5, relative_step=False)
optimizer.apply([keras.ops.ones((1,))], [weight])
print("expected: a step of 1.5, the learning rate times the weight's RMS")
print(f"seen: a step of {1.0 - float(weight[0])}, that of relative_step=True")
sys.exit(int(float(weight[0]) != -0.5))
