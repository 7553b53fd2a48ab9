"""On a CPU max pooling ignores NaN, so an overflow before it does not reach the loss."""

import sys

import numpy as np
import tensorflow as tf

image = np.array([1.0, np.nan, 2.0, 3.0], np.float32).reshape(1, 2, 2, 1)
seen = tf.nn.max_pool2d(image, 2, 2, "VALID").numpy().item()
print("expected: the maximum of 1, nan, 2 and 3 is nan")
print(f"seen: {seen}")
sys.exit(not np.isnan(seen))
