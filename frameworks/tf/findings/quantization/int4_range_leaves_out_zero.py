"""Four-bit groups whose values have one sign come back as other values, since their range leaves out zero."""

import sys

import keras
import numpy as np

values = np.array([[1000.0], [1000.5], [1001.0], [1000.25]], np.float32)
codes, scale, zero_point = keras.quantizers.abs_max_quantize_grouped_with_zero_point(values, block_size=4)
restored = (np.array(codes, np.float32) - np.array(zero_point, np.float32)) * np.array(scale)
print("expected: 1000 of a group of four bits comes back as 1000, within half of 1001 / 15")
print(f"seen: it comes back as {restored[0, 0]:.6g}")
sys.exit(bool(abs(restored[0, 0] - 1000.0) > 0.51 * 1001.0 / 15.0))
