"""GradScaler.step returns None for a skipped update too, so a schedule that follows it advances all the same."""

import sys

import torch

weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1.0)
scheduler, scaler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), torch.amp.GradScaler("cpu")
returned = []
for value in (1.0, float("inf")):  # one update, then one that is skipped
    optimizer.zero_grad()
    scaler.scale((weight * value).sum()).backward()
    returned.append(scaler.step(optimizer))
    scaler.update()
    scheduler.step()

rate = optimizer.param_groups[0]["lr"]
print("expected: a rate of 0.5 after one applied update, or a step that tells the skipped one apart")
print(f"seen: a rate of {rate}; step returned {returned}")
sys.exit(0 if rate == 0.5 or returned[0] != returned[1] else 1)
