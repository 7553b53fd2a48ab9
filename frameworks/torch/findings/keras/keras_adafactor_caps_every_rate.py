"""Keras' Adafactor caps its rate at one over the root of the step, with relative_step=False too."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch

weight = keras.Variable(np.ones((1,), "float32"))
optimizer = keras.optimizers.Adafactor(1.5, relative_step=False)
with torch.no_grad():
    optimizer.apply([keras.ops.ones((1,))], [weight])
after = keras.ops.convert_to_numpy(weight)
print("expected: a step of 1.5, the learning rate times the weight's RMS")
print(f"seen: a step of {1.0 - float(after[0])}, that of relative_step=True")
sys.exit(int(float(after[0]) != -0.5))
