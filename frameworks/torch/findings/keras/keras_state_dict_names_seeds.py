"""A Keras model names seed generators in its state_dict by creation, so the same model made again refuses it."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras


def make_model():
    layers = [keras.Input((2,)), keras.layers.Dense(2, name="dense"), keras.layers.Dropout(0.5, name="dropout")]
    return keras.Sequential(layers, name="model")


template = "a model's state_dict loaded into the same model made again: {}"
expected = template.format("all keys match")
try:
    make_model().load_state_dict(make_model().state_dict())
    seen = expected
except RuntimeError as error:
    seen = template.format(str(error).split(":")[1].strip()[:60])
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
