"""On PyTorch keras.ops.matmul of two float64 tensors computes in float32, and so does a Dense layer in float64."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

third = torch.full((1, 1), 1.0, dtype=torch.float64) / 3
product = keras.ops.matmul(third, third)
layer = keras.layers.Dense(1, dtype="float64", kernel_initializer="ones")
wide = layer(third).detach()
template = "1/3 · 1/3 in {}, and 1/3 through a float64 layer with the weight 1 differs by {}"
expected, seen = (
    template.format("torch.float64", 0.0),
    template.format(product.dtype, f"{abs(float(wide) - 1 / 3):.1e}".replace("0.0e+00", "0.0")),
)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
