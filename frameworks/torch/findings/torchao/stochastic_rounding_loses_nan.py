"""The stochastic rounding of torchao's optimizers turns NaN into a number."""

import sys

import torch
from torchao.optim.quant_utils import _fp32_to_bf16_sr

torch.manual_seed(0)
bits = torch.full((1000,), 0x7FFFFFFF, dtype=torch.int32)
seen = _fp32_to_bf16_sr(bits.view(torch.float32))
numbers = seen[~seen.isnan()]

print("expected: 1000 of 1000 draws of a NaN with the bits 7fffffff are NaN")
print(f"seen: {1000 - len(numbers)} of 1000, others such as {numbers[:1].tolist()}")
sys.exit(0 if not len(numbers) else 1)
