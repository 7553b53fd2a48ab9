"""Optimizer.load_state_dict takes the state of another optimizer class, and the next step raises KeyError."""

import sys

import torch


def load_other_state(receiving, saving):
    optimizers = []
    for optimizer_class in (receiving, saving):
        weight = torch.ones(1, requires_grad=True)
        optimizers.append(optimizer_class([weight], lr=0.5))
        weight.sum().backward()
        optimizers[-1].step()
    try:
        optimizers[0].load_state_dict(optimizers[1].state_dict())
        optimizers[0].step()
    except (ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "trained on"


seen = [load_other_state(torch.optim.SGD, torch.optim.Adam), load_other_state(torch.optim.Adam, torch.optim.SGD)]
print("expected: a ValueError of load_state_dict, as for other groups, for Adam's state in SGD and SGD's in Adam")
print(f"seen: {seen}, by the next step")
sys.exit(0 if all(outcome.startswith("ValueError") for outcome in seen) else 1)
