"""Fused SGD with momentum goes on with an uninitialised velocity after a first step that an overflow skipped."""

import sys

import torch

torch.use_deterministic_algorithms(True)  # new memory is filled with NaN, so that its use shows

seen = {}
for fused in (False, True):
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (float("inf"), 1.0):
        scaler.scale((factor * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    seen["fused" if fused else "by tensor"] = weight.tolist()

print("expected: 1 - 0.5 * 1 = 0.5 after a skipped update and one by the gradient 1")
print(f"seen: {seen}")
sys.exit(0 if seen["fused"] == seen["by tensor"] == [0.5, 0.5] else 1)
