"""EinsumDense adds the biases of 4 heads of one value to the 4 places of a sequence, one to each, not to the heads."""

import sys

import keras
import numpy as np

seen = {}
for places in (3, 4):
    layer = keras.layers.EinsumDense("abc,cde->abde", output_shape=(None, 4, 1), bias_axes="de")
    layer.build((None, places, 2))
    layer.kernel.assign(np.zeros((2, 4, 1)))
    layer.bias.assign(np.arange(4.0)[:, None])
    seen[places] = layer(np.ones((1, places, 2), np.float32)).numpy()[0, :, :, 0].tolist()

print("expected: the biases 0 to 3 of the heads, at every place")
print(f"seen: {seen}")
sys.exit(0 if all(row == [0.0, 1.0, 2.0, 3.0] for rows in seen.values() for row in rows) else 1)
