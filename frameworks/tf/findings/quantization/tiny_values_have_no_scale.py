"""Keras' delayed scale of tiny finite values is zero, and quantizing with it makes NaN of them."""

import sys

import keras
import numpy as np

values = np.array([1e-37, 0.0], np.float32)
history = keras.quantizers.compute_float8_amax_history(values, np.zeros(1, np.float32))
scale = keras.quantizers.compute_float8_scale(keras.ops.max(history), np.float32(1.0), np.float32(448.0))
came_back = np.array(keras.quantizers.quantize_and_dequantize(values, scale, "float8_e4m3fn", "float32"))

print("expected: finite values, for 1e-37 and 0 are finite, and a scale that would be too small is limited")
print(f"seen: {came_back} by a scale of {float(scale)}")
sys.exit(not np.isfinite(came_back).all())
