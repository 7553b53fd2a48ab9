"""In a ChainedScheduler CosineAnnealingWarmRestarts discards the factors of the other schedules' earlier steps."""

import math
import sys

import torch
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingWarmRestarts, StepLR

optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
parts = [CosineAnnealingWarmRestarts(optimizer, 4), StepLR(optimizer, 3, 0.5)]
schedule = ChainedScheduler(parts)
seen = []
for _ in range(7):
    seen.append(round(optimizer.param_groups[0]["lr"], 3))
    optimizer.step()
    schedule.step()
expected = [round((1 + math.cos(math.pi * (t % 4) / 4)) / 2 * 0.5 ** (t // 3), 3) for t in range(7)]
print("expected:", expected)
print("seen:    ", seen)
sys.exit(int(seen != expected))
