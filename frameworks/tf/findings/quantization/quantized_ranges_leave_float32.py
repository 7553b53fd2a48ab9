"""tf.quantization gives NaN for finite values whose range, or its reciprocal, leaves float32."""

import sys

import numpy as np
import tensorflow as tf

seen = []
for size in (3e38, 1.0, 1e-37):
    coded = tf.quantization.quantize(
        [size, -size, 0.0], -size, size, tf.quint8, mode="MIN_FIRST", ensure_minimum_range=0.0
    )
    restored = tf.quantization.dequantize(*coded, mode="MIN_FIRST").numpy()
    seen.append(bool(np.isfinite(restored).all()))

print("expected: [True, True, True], for values to 3e38, 1 and 1e-37 that are finite when restored")
print(f"seen: {seen}")
sys.exit(not all(seen))
