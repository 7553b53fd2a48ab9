"""SGD(fused=True) on a CPU leaves whole vectors of low-precision weights unmoved."""

import sys

import torch

moved = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    weight = torch.ones(100, dtype=dtype, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.5, fused=True).step()
    moved[str(dtype)] = int((weight == 0.5).sum())

print("expected: an update by 0.5 of all 100 weights in every format")
print(f"seen: updates of {moved}")
sys.exit(0 if set(moved.values()) == {100} else 1)
