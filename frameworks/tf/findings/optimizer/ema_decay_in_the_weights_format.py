"""use_ema computes 1 - ema_momentum in the format of the weights, so that bfloat16 weights are averaged by 0.102."""

import sys

import keras
import tensorflow as tf

weight = keras.Variable([0.0], dtype="bfloat16")
optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.9)
for gradient in (0.0, -1.0):
    optimizer.apply([tf.constant([gradient], tf.bfloat16)], [weight])
(average,) = optimizer._model_variables_moving_average
seen = float(average.numpy()[0])
print("expected: 0.1 within 0.0002, the average of 0 and 1 by 0.9 and 0.1, as bfloat16 holds it")
print(f"seen: {seen}")
sys.exit(int(abs(seen - 0.1) > 0.0002))
