"""torch.distributed.checkpoint loads no Adam state into a new optimizer whose parameter has a gradient."""

import sys
import tempfile

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
saved, loaded = (torch.optim.Adam(model.parameters(), lr=0.1) for model in models)
for model in models:
    model(torch.ones(1, 1)).sum().backward()
saved.step()
with tempfile.TemporaryDirectory() as folder:
    checkpoint.save({"optimizer": get_optimizer_state_dict(models[0], saved)}, checkpoint_id=folder)
    state = {"optimizer": get_optimizer_state_dict(models[1], loaded)}
    checkpoint.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(models[1], loaded, state["optimizer"])
names = sorted(loaded.state[models[1].weight])

print("expected: ['exp_avg', 'exp_avg_sq', 'step']")
print(f"seen: {names}")
sys.exit(0 if len(names) == 3 else 1)
