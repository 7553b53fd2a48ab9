"""A SequentialLR made with last_epoch=2 sets the rate of its first part, although its second one is due."""

import sys

import torch
from torch.optim.lr_scheduler import ConstantLR, SequentialLR


def schedule(optimizer: torch.optim.Optimizer, last_epoch: int = -1) -> SequentialLR:
    parts = [ConstantLR(optimizer, factor, total_iters=100) for factor in (0.5, 0.25)]
    return SequentialLR(optimizer, parts, milestones=[2], last_epoch=last_epoch)


optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
first = schedule(optimizer)
for _ in range(3):
    optimizer.step()
    first.step()
expected = optimizer.param_groups[0]["lr"]
schedule(optimizer, last_epoch=2)  # the schedule has seen epochs 0 to 2
seen = optimizer.param_groups[0]["lr"]
print("expected:", expected)
print("seen:", seen)
sys.exit(seen != expected)
