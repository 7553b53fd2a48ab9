"""A variable without a gradient in a window's last micro-batch loses the gradients that it accumulated before."""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

warnings.simplefilter("ignore")
used, always = keras.Variable(0.0, name="used"), keras.Variable(0.0, name="always")
optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
with torch.no_grad():
    optimizer.apply([torch.tensor(1.0), torch.tensor(1.0)], [used, always])
    optimizer.apply([None, torch.tensor(1.0)], [used, always])
template = "weight {} after a window with the gradients 1 and none, at the rate 1"
expected, seen = template.format(-0.5), template.format(float(used.value.detach()))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
