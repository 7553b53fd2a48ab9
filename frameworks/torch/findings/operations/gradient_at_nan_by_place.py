"""The gradient of hardtanh at NaN is 0 at some positions of a tensor and 1 at others."""

import sys

import torch

x = torch.full([19], float("nan"), requires_grad=True)
torch.nn.functional.hardtanh(x).sum().backward()
values = {str(value) for value in x.grad.tolist()}
print("expected: one value")
print(f"seen: {' and '.join(sorted(values))}")
sys.exit(len(values) > 1)
