"""A layer made in a RematScope whose call takes `training` raises in a graph, so Model.fit cannot train it."""

import sys

import keras
import numpy as np

with keras.RematScope(mode="full"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dropout(0.5)])
model.compile("sgd", "mse")
expected = "an epoch"
try:
    model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0)
    seen = "an epoch"
except ValueError as error:
    seen = "ValueError: The custom_gradient" + str(error).partition("The custom_gradient")[2].split("\x1b")[0]
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
