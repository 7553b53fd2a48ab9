"""A copy of LBFGS lacks its list of parameters, so that it cannot step."""

import copy
import sys

import torch

weight = torch.ones(2, requires_grad=True)


def closure() -> torch.Tensor:
    weight.grad = torch.ones_like(weight)
    return weight.detach().sum()


seen = "a step"
try:
    copy.deepcopy(torch.optim.LBFGS([weight])).step(closure)
except AttributeError as error:
    seen = f"AttributeError: {error}"
print("expected: a step, as copies of every other optimizer make")
print(f"seen: {seen}")
sys.exit(0 if seen == "a step" else 1)
