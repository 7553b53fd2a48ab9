"""On PyTorch, Keras' ScheduleFreeAdamW uses its new momentum where its formula has the old one."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

seen = {}
for stateless in (False, True):
    weight = keras.Variable(np.full(1, 0.5, np.float32))
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.0625)
    optimizer.build([weight])
    for gradient in ([1.0], [0.5]):
        update = [keras.ops.convert_to_tensor(np.float32(gradient))]
        if stateless:
            new = optimizer.stateless_apply([state.value for state in optimizer.variables], update, [weight.value])
            for variable, value in zip([weight, *optimizer.variables], [*new[0], *new[1]], strict=True):
                variable.assign(value)
        else:
            optimizer.apply(update, [weight])
    seen["stateless_apply" if stateless else "apply"] = round(float(weight.numpy()[0]), 4)
print("expected: the same weight by apply and by stateless_apply")
print(f"seen: {seen}")
sys.exit(0 if len(set(seen.values())) == 1 else 1)
