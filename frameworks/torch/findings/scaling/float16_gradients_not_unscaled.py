"""GradScaler refuses to unscale float16 gradients, so a float16 model cannot be trained under it with SGD or Adam."""

import sys

import torch

seen = {}
for optimizer_class in (torch.optim.SGD, torch.optim.Adam):
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=16.0), optimizer_class([weight], lr=0.5)
    scaler.scale(weight.sum()).backward()
    try:
        scaler.step(optimizer)
        seen[optimizer_class.__name__] = weight.item()
    except ValueError as error:
        seen[optimizer_class.__name__] = f"ValueError: {error}"

print("expected: 1 - 0.5 * 1 = 0.5 with either")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {0.5} else 1)
