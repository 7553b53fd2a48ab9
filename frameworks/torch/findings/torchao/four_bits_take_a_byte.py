"""IntxWeightOnlyConfig stores the codes of 4096 weights in 4 bits by default in 4096 bytes."""

import sys

import torch
from torchao.quantization import IntxWeightOnlyConfig, PerAxis, quantize_

layer = torch.nn.Linear(64, 64)
quantize_(layer, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)))
codes = layer.weight.qdata

print("expected: 2048 bytes, two codes to a byte")
print(f"seen: {codes.nbytes} bytes")
sys.exit(0 if codes.nbytes == 2048 else 1)
