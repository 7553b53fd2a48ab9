"""A checkpointed function that closes over a weight is recomputed with its new value if it changes before backward."""

import sys

import torch
from torch.utils.checkpoint import checkpoint

seen = {}
for reentrant in (False, True):
    weight, x = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    value = checkpoint(lambda y, w=weight: (w * y).square(), x, use_reentrant=reentrant)
    with torch.no_grad():
        weight.mul_(3.0)
    try:
        value.backward()
        seen[f"use_reentrant={reentrant}"] = weight.grad.item()
    except RuntimeError:
        seen[f"use_reentrant={reentrant}"] = "RuntimeError"

print("expected: 2 * 1 * 1 = 2.0, the gradient at the forward pass's weight, or RuntimeError as without checkpoint")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) <= {2.0, "RuntimeError"} else 1)
