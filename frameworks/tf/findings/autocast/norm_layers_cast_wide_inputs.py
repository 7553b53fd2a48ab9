"""Under mixed_float16 some norm layers of Keras cast float32 inputs to float16 first: 131072 gives NaN."""

import sys

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
seen = []
for name, layer in layers.items():
    keywords = {"training": True} if name == "BatchNormalization" else {}
    if not np.isfinite(np.array(layer(inputs, **keywords))).all():
        seen.append(name)
print("expected: finite outputs of every norm layer for inputs of ±131072")
print(f"seen: NaN from {', '.join(seen) or 'none'}")
sys.exit(int(bool(seen)))
