"""keras.remat runs a layer's state changes again: dropout draws another mask, batch norm's statistics move twice."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

outcomes = []
for wrap in (lambda f: f, keras.remat):
    drop, norm = keras.layers.Dropout(0.5, seed=0), keras.layers.BatchNormalization(momentum=0.5)
    weight = keras.Variable(torch.ones(64))
    run = wrap(lambda x, d=drop, n=norm, w=weight: d(n(x, training=True) + w.value, training=True))
    outputs = run(torch.ones(4, 64))
    kept = (outputs != 0).sum(0)
    (outputs**2).sum().backward()
    of_other_masks = int((weight.value.grad != 8.0 * kept).sum())
    outcomes.append((of_other_masks, float(norm.moving_mean.value[0])))
template = "{} of 64 gradients of other masks than the forward's, a moving mean of {}"
expected, seen = (template.format(*counts) for counts in outcomes)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
