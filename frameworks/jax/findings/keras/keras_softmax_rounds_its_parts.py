"""keras.ops.softmax of bfloat16 on JAX rounds differences, exponentials and sums on the way."""

import math
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
import keras

logits = keras.ops.convert_to_tensor([[60.0, 0.12109375]], "bfloat16")
exact = math.exp(0.12109375 - 60.0)
expected = float(keras.ops.convert_to_tensor(exact, "bfloat16"))
seen = float(keras.ops.softmax(logits)[0, 1])
print(f"expected: {expected:.3g} as the second probability of the logits (60, 0.12109375), {exact:.3g} in float64")
print(f"seen: {seen:.3g}")
sys.exit(int(seen != expected))
