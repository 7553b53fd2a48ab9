"""Model.load_weights assigns the layers that match before it raises that another layer of the file does not."""

import sys
import tempfile

import keras
import numpy as np


def make(hidden: int, value: float) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.LayerNormalization(), keras.layers.Dense(hidden)])
    model.set_weights([np.full(weight.shape, value) for weight in model.get_weights()])
    return model


folder = tempfile.TemporaryDirectory()
path = f"{folder.name}/model.weights.h5"
make(5, 1.0).save_weights(path)
model = make(4, 2.0)
try:
    model.load_weights(path)
    outcome = "no refusal"
except ValueError:
    outcome = "ValueError"
scale = float(model.layers[0].gamma.numpy()[0])
expected, seen = "norm's scale 2.0 after ValueError", f"norm's scale {scale} after {outcome}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
