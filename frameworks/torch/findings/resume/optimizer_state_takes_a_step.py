"""get_optimizer_state_dict steps a new Adam once, so that its first update has the second bias correction."""

import sys

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
get_optimizer_state_dict(model, optimizer)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
step, weight = int(optimizer.state[model.weight]["step"]), round(model.weight.item(), 5)

print("expected: step 1, weight 0.9")
print(f"seen: step {step}, weight {weight}")
sys.exit(0 if (step, weight) == (1, 0.9) else 1)
