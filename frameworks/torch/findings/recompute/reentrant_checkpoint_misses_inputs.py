"""torch.autograd.grad of weights inside a reentrant checkpoint returns None for them, and raises nothing."""

import sys

import torch
from torch.utils.checkpoint import checkpoint

first, second = (torch.full((2, 2), 0.5, requires_grad=True) for _ in range(2))
x = torch.ones(2, requires_grad=True)
y = checkpoint(lambda x: first @ x, x, use_reentrant=True)
loss = (second @ y).sum()
gradients = torch.autograd.grad(loss, [first, second], allow_unused=True)
print("expected: a gradient of 1.0 for each element of the first weight, or an error")
print(f"seen: {'no gradient, no error' if gradients[0] is None else gradients[0].tolist()}")
sys.exit(gradients[0] is None)
