"""Inside jax.jit a division by a scalar multiplies by its rounded inverse: a third of the quotients by 0.75 are off."""

import sys

import jax
import numpy as np

x = np.linspace(0.1, 1.0, 1000, dtype=np.float32)
quotients = np.asarray(jax.jit(lambda dividends: dividends / 0.75)(x))
wrong = int((quotients != x / np.float32(0.75)).sum())
print("expected: 0 of 1000 quotients are off")
print(f"seen: {wrong} of 1000 quotients are off in the last bit")
sys.exit(wrong > 0)
