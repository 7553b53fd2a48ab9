"""Keras raises ValueError for an update in which no variable has a gradient."""

import sys

import keras

weight = keras.Variable(1.0)
optimizer = keras.optimizers.SGD(0.5)
expected = "nothing"
try:
    optimizer.apply([None], [weight])
    seen = "nothing"
except ValueError as error:
    seen = f"ValueError: {error}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
