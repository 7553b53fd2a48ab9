"""xlogy(0, y) is 0 for every y, and its gradient by y at y = 0 is NaN."""

import sys

import torch

y = torch.zeros(1, requires_grad=True)
torch.xlogy(torch.zeros(1), y).backward()
print("expected: 0.0, the slope of a function that is 0 everywhere")
print(f"seen: {y.grad.item()}")
sys.exit(0 if y.grad.item() == 0.0 else 1)
