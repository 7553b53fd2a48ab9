"""On a GPU Adam8bit keeps a tiny negative first moment as the smallest negative code, and a tiny positive one as 0."""

import sys

import torch
from bitsandbytes.functional import dequantize_blockwise
from bitsandbytes.optim import Adam8bit

weights = torch.zeros(4096, device="cuda", requires_grad=True)
optimizer = Adam8bit([weights], lr=0.01)
weights.grad = torch.full((4096,), 1e-9, device="cuda")
weights.grad[1::2] *= -1.0
weights.grad[::256] = 1.0
optimizer.step()
state = optimizer.state[weights]
moments = dequantize_blockwise(state["state1"], absmax=state["absmax1"], code=state["qmap1"], blocksize=256)
positive, negative = moments[2].item(), moments[1].item()
print("expected: 0.0 of 1e-10, 0.0 of -1e-10, next to 0.1")
print(f"seen: {positive} of 1e-10, {negative} of -1e-10, next to {moments[0].item()}")
sys.exit(0 if positive == negative == 0 else 1)
