"""On a CPU Adam8bit stores a moment of 0 as another value, so that weights move which never had a gradient."""

import sys

import torch
from bitsandbytes.optim import Adam8bit

weights = torch.zeros(4096, requires_grad=True)
optimizer = Adam8bit([weights], lr=0.01)
for _ in range(30):
    weights.grad = torch.zeros(4096)
    weights.grad[0] = 1.0
    optimizer.step()
moved = weights[1:].abs().max().item()
print("expected:", 0.0)
print("seen:", moved)
sys.exit(0 if moved == 0 else 1)
