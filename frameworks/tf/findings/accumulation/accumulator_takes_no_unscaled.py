"""LossScaleOptimizer unscales into float32, which an accumulator in a float16 or bfloat16 variable's format refuses."""

import sys

import keras
import tensorflow as tf

ends = []
for name in ("float16", "bfloat16"):
    weight = keras.Variable(0.0, dtype=name)
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    try:
        for gradient in (4.0, 2.0):
            optimizer.apply([tf.constant(gradient, name)], [weight])
        ends.append(f"{name} {float(weight)}")
    except Exception as error:
        ends.append(f"{name} {type(error).__name__}")
expected, seen = "weights float16 -0.375, bfloat16 -0.375", f"weights {', '.join(ends)}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
