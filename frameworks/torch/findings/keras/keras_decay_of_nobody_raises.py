"""On PyTorch a Keras optimizer that excludes every variable from its weight decay raises RuntimeError."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

weight = keras.Variable(1.0, name="bias")
optimizer = keras.optimizers.SGD(0.5, weight_decay=0.1)
optimizer.exclude_from_weight_decay(var_names=["bias"])
optimizer.build([weight])
expected = "weight 0.75 after a gradient of 0.5 without decay"
try:
    with torch.no_grad():
        optimizer.apply([torch.tensor(0.5)], [weight])
    seen = f"weight {float(weight.value.detach())} after a gradient of 0.5 without decay"
except RuntimeError as error:
    seen = f"RuntimeError: {str(error).splitlines()[0][:100]}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
