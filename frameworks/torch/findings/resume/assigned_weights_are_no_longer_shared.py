"""load_state_dict(assign=True) of a model whose two layers share a weight: is it still one parameter?"""

import sys

from torch import nn


def model() -> nn.Sequential:
    result = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    result[1].weight = result[0].weight
    return result


loaded = model()
loaded.load_state_dict(model().state_dict(), assign=True)
seen = [name for name, _ in loaded.named_parameters()]
print("expected: parameters ['0.weight']")
print(f"seen: parameters {seen}")
sys.exit(seen != ["0.weight"])
