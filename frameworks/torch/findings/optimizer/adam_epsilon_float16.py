"""Adam's default epsilon is added in the parameter's format, where it is zero in float16: a zero gradient gives 0/0."""

import sys

import torch

seen = {}
for name, options in {"fused": {"fused": True}, "foreach": {"foreach": True}, "by tensor": {"foreach": False}}.items():
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    torch.optim.Adam([weight], **options).step()
    seen[name] = weight.item()

print("expected: 1 - 0.001 * 0 / (sqrt(0) + 1e-8) = 1.0, whatever the implementation")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {1.0} else 1)
