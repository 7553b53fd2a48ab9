"""LoRA that is enabled after a training step has no effect: the traced step trains the frozen kernel on."""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False)])
model.compile(keras.optimizers.SGD(0.1), "mse")
batch = np.ones((1, 2)), np.zeros((1, 2))
model.train_on_batch(*batch)
layer = model.layers[0]
layer.enable_lora(1)
kernel = np.array(layer._kernel)
for _ in range(2):
    model.train_on_batch(*batch)
moves, adapts = not np.array_equal(layer._kernel, kernel), bool(np.any(layer.lora_kernel_b))

print("expected: the frozen kernel moves: False, the adapters move: True, or an exception")
print(f"seen: the frozen kernel moves: {moves}, the adapters move: {adapts}")
sys.exit(int(moves and not adapts))
