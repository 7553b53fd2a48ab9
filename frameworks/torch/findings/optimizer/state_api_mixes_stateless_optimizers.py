"""Two optimizers without state, SGD without momentum, saved and loaded by the state API of distributed checkpoints."""

import sys

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model = torch.nn.Linear(2, 2)
optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
saved, state = get_state_dict(model, optimizers)
print("expected: both optimizers load what they saved")
try:
    set_state_dict(model, optimizers, model_state_dict=saved, optim_state_dict=state)
except ValueError as error:
    print(f"seen: {error}")
    sys.exit(1)
print("seen: both loaded")
