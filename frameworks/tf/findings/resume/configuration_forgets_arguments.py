"""The axis and the format of a loss are lost where it is made again from its configuration, as a loaded model does."""

import sys
import warnings

import keras

warnings.simplefilter("ignore")
truth, predicted = [[0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]
loss = keras.losses.CosineSimilarity(axis=0, reduction="sum")
again = keras.losses.deserialize(keras.losses.serialize(loss))
template = "a loss of {:.4f} by the configuration of a loss of {:.4f}"
value = float(loss(truth, predicted))
expected, seen = template.format(value, value), template.format(float(again(truth, predicted)), value)
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
