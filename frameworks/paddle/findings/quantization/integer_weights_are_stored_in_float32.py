"""PTQ.convert stores the codes of eight bits of a quantized weight as float32: no byte is saved."""

import sys
import warnings

import paddle
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import AbsmaxObserver

warnings.simplefilter("ignore")
paddle.set_device("cpu")
model = paddle.nn.Sequential(paddle.nn.Linear(8, 8))
model.eval()
technique = PTQ(QuantConfig(activation=AbsmaxObserver(), weight=AbsmaxObserver()))
observed = technique.quantize(model)
observed(paddle.ones([1, 8]))
weight = technique.convert(observed)[0].weight
print("expected: a weight of 8 times 8 integers of eight bits takes 64 bytes")
print(f"seen: it takes {weight.numpy().nbytes} bytes, in {weight.dtype}")
sys.exit(weight.numpy().nbytes > 64)
