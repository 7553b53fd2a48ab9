"""GradScaler looks for inf and NaN when gradients are unscaled: what unscale_'s caller makes non-finite is applied."""

import sys

import torch

weight = torch.ones(1, requires_grad=True)
scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], lr=0.5)
scaler.scale(weight.sum()).backward()
scaler.unscale_(optimizer)
weight.grad.mul_(float("inf"))  # as a clipping of one's own might
scaler.step(optimizer)
scaler.update()

print("expected: 1.0, the update is skipped")
print(f"seen: {weight.item()}")
sys.exit(0 if weight.item() == 1.0 else 1)
