"""LossScaleOptimizer unscales into float32, which an accumulator in a float16 or bfloat16 variable's format refuses."""

import sys

import keras
import tensorflow as tf

results = []
for dtype in ("float16", "bfloat16"):
    weight = keras.Variable(0.0, dtype=dtype)
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    try:
        for gradient in (4.0, 2.0):
            optimizer.apply([tf.constant(gradient, dtype)], [weight])
        results.append(f"{dtype} {float(weight)}")
    except Exception as error:
        results.append(f"{dtype} {type(error).__name__}")
expected, seen = "weights float16 -0.375, bfloat16 -0.375", f"weights {', '.join(results)}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
