"""A SequentialLR that is a part of another ends the rates of its own first part one update early."""

import sys

import torch
from torch.optim.lr_scheduler import ConstantLR, SequentialLR


def parts(optimizer: torch.optim.Optimizer, *factors: float) -> list[ConstantLR]:
    return [ConstantLR(optimizer, factor, total_iters=100) for factor in factors]


optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
inside = SequentialLR(optimizer, parts(optimizer, 0.5, 0.25), milestones=[3])
schedule = SequentialLR(optimizer, [inside, *parts(optimizer, 0.125)], milestones=[5])
seen = []
for _ in range(7):
    seen.append(optimizer.param_groups[0]["lr"])
    optimizer.step()
    schedule.step()
expected = [0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
print("expected:", expected)
print("seen:    ", seen)
sys.exit(0 if seen == expected else 1)
