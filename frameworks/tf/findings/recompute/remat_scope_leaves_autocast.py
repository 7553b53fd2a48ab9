"""A layer made in a RematScope reads its weights in float32 when it is recomputed, so mixed precision raises."""

import sys

import keras
import tensorflow as tf

keras.config.set_dtype_policy("mixed_bfloat16")
with keras.RematScope(mode="full"):
    layer = keras.layers.Dense(1, "tanh", use_bias=False, kernel_initializer="ones")
x = tf.ones((1, 1))
layer.build(x.shape)
with tf.GradientTape() as tape:
    value = layer(x)
expected = "slope 0.42 of tanh at 1"
try:
    seen = f"slope {float(tape.gradient(value, layer.kernel.value)[0, 0]):.2f} of tanh at 1"
except Exception as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
