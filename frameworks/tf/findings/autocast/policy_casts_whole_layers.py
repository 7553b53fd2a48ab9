"""A dtype policy casts every floating-point input of a layer and keeps no list of operations, so sums overflow."""

import sys

import keras
import numpy as np


class Sum(keras.layers.Layer):
    def call(self, x: object) -> object:
        return keras.ops.sum(x)


x = np.ones((1, 70_000), np.float64)
expected, seen = "a sum of 70000.0", f"a sum of {float(Sum(dtype='mixed_float16')(x))}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
