"""GroupWiseWeightObserver takes groups of 128 rows, whatever its group_size."""

import sys

import paddle
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import GroupWiseWeightObserver

model = paddle.nn.Sequential(paddle.nn.Linear(256, 2))
model.eval()
config = QuantConfig(activation=None, weight=GroupWiseWeightObserver(quant_bits=4, group_size=64))
observed = PTQ(config).quantize(model)
observed(paddle.zeros([1, 256]))
groups = observed[0].weight_quanter.scales().shape[0]
print("expected: 4 ranges of 64 rows each")
print(f"seen: {groups}")
sys.exit(0 if groups == 4 else 1)
