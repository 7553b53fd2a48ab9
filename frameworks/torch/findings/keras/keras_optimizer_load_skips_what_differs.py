"""load_own_variables of a Keras optimizer only warns and loads nothing if the number of saved variables differs."""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

warnings.simplefilter("ignore")
saved, loaded = keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5, momentum=0.9)
store = {}
for optimizer in (saved, loaded):
    optimizer.build([keras.Variable(np.ones(2, np.float32), name="weight")])
saved.iterations.assign(7)
saved.save_own_variables(store)
expected = "the state of SGD loaded into SGD with momentum: ValueError"
try:
    loaded.load_own_variables(store)
    seen = f"the state of SGD loaded into SGD with momentum: {int(loaded.iterations)} updates for 7"
except ValueError:
    seen = expected
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(int(seen != expected))
