"""load_state_dict(assign=True) makes two parameters of a weight that two layers share."""

import sys

from torch import nn


def make_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    return model


loaded = make_model()
loaded.load_state_dict(make_model().state_dict(), assign=True)
seen = [name for name, _ in loaded.named_parameters()]
print("expected: parameters ['0.weight']")
print(f"seen: parameters {seen}")
sys.exit(seen != ["0.weight"])
