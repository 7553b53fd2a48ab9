"""keras.quantizers.get passes all keyword arguments as one dictionary, which AbsMaxQuantizer takes for its axis."""

import sys

import keras
import numpy as np

values = np.array([[1.0, -2.0], [3.0, 4.0]], "float32")
want = [[42, -64], [127, 127]]
print(f"expected: codes {want}")
try:
    codes, _ = keras.quantizers.get("AbsMaxQuantizer", axis=0)(values)
    seen = np.asarray(codes).tolist()
except Exception as error:
    seen = type(error).__name__
codes, _ = keras.quantizers.get("AbsMaxQuantizer")(values)
print(f"seen: {seen}; without the argument a range for each element, codes {np.asarray(codes).tolist()}")
sys.exit(seen != want)
