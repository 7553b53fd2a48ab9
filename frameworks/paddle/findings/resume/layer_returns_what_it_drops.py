"""Layer.set_state_dict loads what fits and only returns the names of weights that it has no place for."""

import sys
import warnings

import paddle

saved = {"weight": paddle.ones([2, 1]), "bias": paddle.ones([1]), "second.weight": paddle.ones([1, 1])}
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    try:
        missing, unexpected = paddle.nn.Linear(2, 1).set_state_dict(saved)
        seen = f"loaded, {len(warned)} warnings, returned {unexpected}"
    except Exception as error:
        seen = f"refused ({type(error).__name__})"
print("expected: refused, for the layer has no second.weight")
print(f"seen: {seen}")
sys.exit("refused" not in seen)
