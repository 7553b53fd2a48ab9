"""LossScaleOptimizer doubles its scale without a limit until it is infinite, and every update after that is skipped."""

import math
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

weight = keras.Variable(1.0)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic_growth_steps=1)
for _ in range(150):
    with torch.no_grad():
        optimizer.apply([torch.tensor(0.0)], [weight])
template = "a finite loss scale after 150 finite steps with a growth interval of 1: {}"
expected, seen = template.format(True), template.format(math.isfinite(float(optimizer.dynamic_scale)))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
