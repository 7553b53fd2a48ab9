"""Gradients of a low-precision model accumulate in its parameters' format, which rounds small contributions away."""

import sys

import torch

weight = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
for value in [1.0] + [2.0**-12] * 63:
    (weight * value).sum().backward()

expected = 1.0 + 63 * 2.0**-12
print(f"expected: {expected}, to the last bit of bfloat16")
print(f"seen: {weight.grad.item()}")
sys.exit(0 if abs(weight.grad.item() - expected) <= 2.0**-8 else 1)
