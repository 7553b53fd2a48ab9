"""Weights of a range up to 1e-30, or beyond 2**126, are all zero after PTQ: the range's reciprocal is not its own."""

import sys
import warnings

import paddle
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import AbsmaxObserver

warnings.simplefilter("ignore")
paddle.set_device("cpu")
technique = PTQ(QuantConfig(activation=None, weight=AbsmaxObserver()))
seen = []
for largest in (1.0, 1e-30, 1e38):
    model = paddle.nn.Sequential(paddle.nn.Linear(1, 1, bias_attr=False))
    model[0].weight.set_value(paddle.full([1, 1], largest))
    model.eval()
    observed = technique.quantize(model)
    observed(paddle.ones([1, 1]))
    seen.append(technique.convert(observed)[0].weight.item())
print("expected: the code of the largest weight is 127.0, whether it is 1, 1e-30 or 1e38")
print(f"seen: {seen}")
sys.exit(seen != [127.0] * 3)
