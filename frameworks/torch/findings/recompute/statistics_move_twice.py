"""A checkpointed batch norm moves its running statistics in the forward pass and again when it is recomputed."""

import sys

import torch
from torch.utils.checkpoint import checkpoint

x, seen = torch.full((4, 1), 10.0), {}
for reentrant in (False, True):
    norm, inputs = torch.nn.BatchNorm1d(1, momentum=0.5), x.clone().requires_grad_()
    checkpoint(norm, inputs, use_reentrant=reentrant).sum().backward()
    seen[f"use_reentrant={reentrant}"] = norm.running_mean.item()

print("expected: 0.5 * 0 + 0.5 * 10 = 5.0 after one step")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {5.0} else 1)
