"""A float64 value just above half-way between two values of float8_e4m3fn: which of them does a cast take?"""

import sys

import torch

value = torch.tensor([1.0625 + 2.0**-40], dtype=torch.float64)
seen = value.to(torch.float8_e4m3fn).to(torch.float64).item()
print("expected: 1.125, which is nearer than 1.0")
print("seen:", seen)
sys.exit(0 if seen == 1.125 else 1)
