"""A Keras model names seed generators in its state_dict by creation, so the same model made again refuses it."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras


def model():
    layers = [keras.Input((2,)), keras.layers.Dense(2, name="dense"), keras.layers.Dropout(0.5, name="dropout")]
    return keras.Sequential(layers, name="model")


expected = "a model's state_dict loaded into the same model made again: all keys match"
try:
    result = model().load_state_dict(model().state_dict())
    seen = f"a model's state_dict loaded into the same model made again: {'all keys match' if result else ''}"
except RuntimeError as error:
    seen = f"a model's state_dict loaded into the same model made again: {str(error).split(':')[1].strip()[:60]}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
