"""GradScaler.step raises where no parameter of the optimizer has a gradient, which the optimizer's own step takes."""

import sys

import torch

unused, used = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([unused], lr=0.5)
scaler.scale(used.sum()).backward()
optimizer.step()  # does nothing
try:
    scaler.step(optimizer)
    scaler.update()
    seen = "nothing happens"
except AssertionError as error:
    seen = f"AssertionError: {error}"

print("expected: nothing happens")
print(f"seen: {seen}")
sys.exit(0 if seen == "nothing happens" else 1)
