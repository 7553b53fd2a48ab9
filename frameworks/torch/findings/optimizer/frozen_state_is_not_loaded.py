"""set_optimizer_state_dict for a model whose weight was frozen after its first update: is its momentum there?"""

import sys

import torch
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict


def make_model() -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Linear(1, 1)
    optimizer = optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    model(torch.ones(1, 1)).sum().backward()
    return model, optimizer


model, optimizer = make_model()
optimizer.step()
saved = get_optimizer_state_dict(model, optimizer)
resumed, taker = make_model()
resumed.weight.requires_grad_(False)
set_optimizer_state_dict(resumed, taker, saved)
seen = sorted(name for name, weight in resumed.named_parameters() if weight in taker.state)
print("expected: state of ['bias', 'weight']")
print(f"seen: state of {seen}")
sys.exit(seen != ["bias", "weight"])
