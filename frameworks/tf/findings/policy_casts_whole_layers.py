"""A dtype policy casts every floating-point input of a layer and keeps no list of operations, so sums overflow."""

import sys

import keras
import numpy as np


class Sum(keras.layers.Layer):
    def call(self, x: object) -> object:
        return keras.ops.sum(x)


x = np.ones((1, 70_000), np.float64)
seen = Sum(dtype="mixed_float16")(x)
print("expected: 70000.0, the sum of 70,000 ones that came in float64")
print(f"seen: {float(seen)}, in {seen.dtype.name}")
sys.exit(int(float(seen) != 70_000.0))
