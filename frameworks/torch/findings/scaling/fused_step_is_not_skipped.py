"""GradScaler.step calls a fused optimizer's step on an overflow: hooks behind it run, and gradients stay scaled."""

import sys

import torch

seen = {}
for fused in (False, True):
    weights = [torch.ones(1, requires_grad=True) for _ in range(2)]
    optimizer, calls = torch.optim.Adam(weights, fused=fused), []
    optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(weights[0].sum() + (float("inf") * weights[1]).sum()).backward()
    scaler.step(optimizer)
    seen["fused" if fused else "by tensor"] = (len(calls), weights[0].grad.item())

print("expected: no call of the hook, as optimizer.step() is skipped, and an unscaled gradient of 1: (0, 1.0)")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {(0, 1.0)} else 1)
