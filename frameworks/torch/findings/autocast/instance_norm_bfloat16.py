"""Instance norm on a CPU rounds the mean of bfloat16 values to bfloat16 before it subtracts it."""

import sys

import torch

x = torch.tensor([1020.0, 1024.0] * 8, dtype=torch.bfloat16).reshape(1, 1, 16)
expected = torch.nn.InstanceNorm1d(1)(x.double())[0, 0, :2].tolist()
with torch.autocast("cpu", dtype=torch.bfloat16):
    seen = torch.nn.InstanceNorm1d(1)(x)[0, 0, :2].tolist()

print(f"expected: {expected}, to the last bit of bfloat16")
print(f"seen: {seen}")
sys.exit(0 if all(abs(a - b) <= 2.0**-8 for a, b in zip(seen, expected, strict=True)) else 1)
