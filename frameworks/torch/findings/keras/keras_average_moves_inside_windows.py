"""With gradient_accumulation_steps a Keras optimizer moves its average of the weights with every micro-batch."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

weight = keras.Variable(0.0)
optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=4)
for gradient in [0.0] * 4 + [-1.0] * 4 + [0.0] * 3:
    with torch.no_grad():
        optimizer.apply([torch.tensor(gradient)], [weight])
(average,) = (variable for variable in optimizer.variables if "average" in variable.name)
template = "an average of {} at momentum 0.5, after updates to the weights 0 and 1 and three quarters of a third window"
expected, seen = template.format(0.5), template.format(float(average))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
