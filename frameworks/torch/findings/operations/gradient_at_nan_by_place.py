"""The gradient of hardtanh at NaN differs between places of one tensor."""

import sys

import torch

x = torch.full([19], float("nan"), requires_grad=True)
torch.nn.functional.hardtanh(x).sum().backward()
kinds = {"nan" if value != value else str(value) for value in x.grad.tolist()}
print("expected: one value")
print(f"seen: {' and '.join(sorted(kinds))}")
sys.exit(len(kinds) > 1)
