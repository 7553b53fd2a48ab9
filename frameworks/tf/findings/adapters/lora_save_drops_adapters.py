"""A loaded model has LoRA on again with new adapters, whose product is zero, under the moments of the old ones."""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False)])
model.layers[0].enable_lora(1)
model.compile("adam", "mse")
model.train_on_batch(np.ones((1, 2)), np.zeros((1, 2)))
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model.keras")
    loaded = keras.models.load_model(Path(folder) / "model.keras")
before, after = (np.abs(own.layers[0].lora_kernel_b).max() for own in (model, loaded))
steps = int(loaded.optimizer.iterations)

print(f"expected: after the load the adapter's B reaches {before:.3g}, as before, at step {steps}")
print(f"seen: it reaches {after:.3g} at step {steps}")
sys.exit(int(before > 0 and after == 0 and steps == 1))
