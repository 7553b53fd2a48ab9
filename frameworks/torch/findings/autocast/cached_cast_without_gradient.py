"""Autocast reuses a weight's cast that it cached under no_grad, so the backward pass finds no gradient history."""

import sys

import torch

layer, x = torch.nn.Linear(1, 1), torch.ones(1, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        layer(x)
    value = layer(x).sum()
try:
    value.backward()
    seen = "the weight has no gradient" if layer.weight.grad is None else "the weight has a gradient"
except RuntimeError as error:
    seen = f"RuntimeError: {error}"

print("expected: the weight has a gradient")
print(f"seen: {seen}")
sys.exit(0 if seen == "the weight has a gradient" else 1)
