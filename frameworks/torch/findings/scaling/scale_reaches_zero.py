"""Overflow after overflow halves the loss scale down to 0, where the next finite gradients are unscaled to NaN."""

import sys

import torch

weight = torch.ones(1, requires_grad=True)
scaler, optimizer, overflows = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], lr=0.5), 0


def update(gradient):
    optimizer.zero_grad()
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


while scaler.get_scale() > 0.0 and overflows < 1000:
    update(float("inf"))
    overflows += 1
update(0.125)

print("expected: 1 - 0.5 * 0.125 = 0.9375, or 1.0 if the update is skipped")
print(f"seen: {weight.item()} after {overflows} overflows, at a scale of {scaler.get_scale()}")
sys.exit(0 if weight.item() in (0.9375, 1.0) else 1)
