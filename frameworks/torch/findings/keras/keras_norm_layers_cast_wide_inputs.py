"""Under mixed_float16 some norm layers of Keras cast float32 inputs beyond 65504 to float16, and return NaN."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

keras.config.set_dtype_policy("mixed_float16")
layers = {
    "LayerNormalization": keras.layers.LayerNormalization(),
    "GroupNormalization": keras.layers.GroupNormalization(1),
    "BatchNormalization": keras.layers.BatchNormalization(),
    "RMSNormalization": keras.layers.RMSNormalization(),
    "UnitNormalization": keras.layers.UnitNormalization(),
}
inputs = np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32) * 2.0**17
training = {"BatchNormalization": {"training": True}}
outputs = {name: layer(inputs, **training.get(name, {})) for name, layer in layers.items()}
outputs = {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}
seen = [name for name, values in outputs.items() if not np.isfinite(values).all()]
print("expected: finite outputs of every norm layer for inputs of ±131072")
print(f"seen: NaN from {', '.join(seen) or 'none'}")
sys.exit(int(bool(seen)))
