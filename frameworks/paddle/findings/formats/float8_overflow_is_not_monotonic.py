"""On a CPU float8 casts make NaN or infinity of values a little too large, 448 or 57344 of larger ones, 448 of NaN."""

import sys

import numpy as np
import paddle

paddle.set_device("cpu")
values = {
    "float8_e4m3fn": [465.0, 480.0, float("inf"), float("nan")],
    "float8_e5m2": [61441.0, 65536.0, float("inf"), float("nan")],
}
seen = {name: paddle.to_tensor(value).cast(name).astype("float32").numpy().tolist() for name, value in values.items()}
print("expected: what overflows is the largest value, 448 or 57344, for every larger one too, and NaN is NaN")
print(f"seen: {values} become {seen}")
one_rule = all(len(set(cast[:3])) == 1 and np.isnan(cast[3]) for cast in seen.values())
sys.exit(not one_rule)
