"""Four-bit groups of finite values come back as NaN where the width of their range overflows float32."""

import sys

import keras
import numpy as np

values = np.array([[3e38], [-3e38], [1.0], [0.0]], np.float32)
codes, scale, zero_point = keras.quantizers.abs_max_quantize_grouped_with_zero_point(values, block_size=4)
with np.errstate(invalid="ignore"):
    restored = (np.array(codes, np.float32) - np.array(zero_point, np.float32)) * np.array(scale)
print("expected: the scale is 4e+37, and finite values come back finite")
print(f"seen: the scale is {np.array(scale).item():.6g}, and finite values come back as {restored.ravel().tolist()}")
sys.exit(not np.isfinite(restored).all())
