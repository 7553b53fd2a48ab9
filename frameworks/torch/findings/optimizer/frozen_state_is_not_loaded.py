"""set_optimizer_state_dict drops the momentum of a weight that was frozen after its first update."""

import sys

import torch
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict


def make_run() -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Linear(1, 1)
    optimizer = optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    model(torch.ones(1, 1)).sum().backward()
    return model, optimizer


model, optimizer = make_run()
optimizer.step()
saved = get_optimizer_state_dict(model, optimizer)
resumed, receiver = make_run()
resumed.weight.requires_grad_(False)
set_optimizer_state_dict(resumed, receiver, saved)
seen = sorted(name for name, weight in resumed.named_parameters() if weight in receiver.state)
print("expected: state of ['bias', 'weight']")
print(f"seen: state of {seen}")
sys.exit(seen != ["bias", "weight"])
