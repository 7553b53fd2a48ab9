"""LossScaleOptimizer halves its scale without a floor until it is zero, and the next finite step makes weights NaN."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

weight = keras.Variable(1.0)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
for gradient in [float("inf")] * 200 + [0.0]:
    with torch.no_grad():
        optimizer.apply([torch.tensor(gradient)], [weight])
template = "weight {} after 200 overflows and a gradient of 0"
expected, seen = template.format(1.0), template.format(float(weight.value.detach()))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
