"""A cast from float64 to float8_e4m3fn rounds to float32 first, so 1.0625 + 2^-40 becomes 1.0 instead of 1.125."""

import sys

import torch

value = torch.tensor([1.0625 + 2.0**-40], dtype=torch.float64)
seen = value.to(torch.float8_e4m3fn).to(torch.float64).item()
print("expected: 1.125, which is nearer than 1.0")
print("seen:", seen)
sys.exit(0 if seen == 1.125 else 1)
