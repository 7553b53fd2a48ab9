"""set_state_dict refuses what get_state_dict returned of two optimizers without state (SGD without momentum)."""

import sys

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model = torch.nn.Linear(2, 2)
optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
saved, state = get_state_dict(model, optimizers)
print("expected: both optimizers load what they saved")
try:
    set_state_dict(model, optimizers, model_state_dict=saved, optim_state_dict=state)
    seen = "both loaded"
except ValueError as error:
    seen = str(error)
print(f"seen: {seen}")
sys.exit(0 if seen == "both loaded" else 1)
