"""A cast from float64 to float8 rounds to float32 first, so values just beyond a middle go to the wrong side."""

import sys

import numpy as np
import paddle

paddle.set_device("cpu")
value = np.array([1.0625 * (1.0 + 2.0**-40)])  # the middle of 1 and 1.125 is 1.0625
cast = paddle.to_tensor(value).cast("float8_e4m3fn").astype("float32").numpy()
print("expected: 1.0625 * (1 + 2**-40) is nearer to 1.125 than to 1.0")
print(f"seen: it becomes {cast.item()}")
sys.exit(cast.item() != 1.125)
