"""CosineAnnealingWarmRestarts made with last_epoch counts one restart for all before it, and restarts too early."""

import sys

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts


def rates(optimizer: torch.optim.Optimizer, schedule: CosineAnnealingWarmRestarts, count: int) -> list[float]:
    seen = []
    for _ in range(count):
        seen.append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        schedule.step()
    return seen


optimizers = [
    torch.optim.SGD([{"params": [torch.ones(1, requires_grad=True)], "initial_lr": 1.0}], lr=1.0) for _ in range(2)
]
expected = rates(optimizers[0], CosineAnnealingWarmRestarts(optimizers[0], 2, 2), 10)[7:]
seen = rates(optimizers[1], CosineAnnealingWarmRestarts(optimizers[1], 2, 2, last_epoch=6), 3)
print("expected:", expected)
print("seen:", seen)
sys.exit(seen != expected)
