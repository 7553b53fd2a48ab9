"""A save of a quantized layer with LoRA rounds the merged kernel to codes again, so that the loaded model differs."""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
layer = model.layers[0]
layer.quantize("int4")
layer.enable_lora(1)
layer.lora_kernel_b.assign(np.linspace(-1, 1, 8, dtype=np.float32)[None])
inputs = np.eye(8, dtype=np.float32)
outputs = np.array(model(inputs))
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model.keras")
    loaded = keras.models.load_model(Path(folder) / "model.keras")
distance = float(np.abs(np.array(loaded(inputs)) - outputs).max())

print(f"expected: the outputs of the loaded model are those of the saved one, up to {np.abs(outputs).max():.3g}")
print(f"seen: they differ by up to {distance:.3g}")
sys.exit(int(distance > 1e-3))
