"""Once GradScaler.step has raised because there were no gradients, it refuses the optimizer's next gradients too."""

import sys

import torch

weight = torch.ones(1, requires_grad=True)
scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=8.0), torch.optim.SGD([weight], lr=0.5)


def step() -> str:
    try:
        scaler.step(optimizer)
        scaler.update()
    except AssertionError as error:
        return f"AssertionError: {error}"
    return f"weight {weight.item()}"


scaler.scale(weight.detach())
refused = step()
scaler.scale(weight.sum()).backward()
seen = step()

print(f"expected: {refused}, then weight 0.5")
print(f"seen: {refused}, then {seen}")
sys.exit(0 if seen == "weight 0.5" else 1)
