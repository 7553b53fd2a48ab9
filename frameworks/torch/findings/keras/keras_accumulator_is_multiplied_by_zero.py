"""On PyTorch Keras empties gradient accumulators by a product with zero, which makes NaN of what was infinite."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

weight = keras.Variable(0.0)
optimizer = keras.optimizers.SGD(1.0, clipvalue=0.5, gradient_accumulation_steps=2)
for gradient in (float("inf"), 1.0, 0.25, 0.25):
    with torch.no_grad():
        optimizer.apply([torch.tensor(gradient)], [weight])
template = "weight {} after windows of the gradients inf, 1 and 0.25, 0.25, clipped to 0.5"
expected, seen = template.format(-0.75), template.format(float(weight.value.detach()))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
