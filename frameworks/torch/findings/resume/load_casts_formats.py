"""Module.load_state_dict casts saved values to the format of the receiving parameters and says nothing."""

import sys
import warnings

import torch

saved, receiver = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False).bfloat16()
torch.nn.init.constant_(saved.weight, 1.0 + 2.0**-12)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    try:
        seen = f"{receiver.load_state_dict(saved.state_dict())}, the weight is {receiver.weight.item()}"
    except RuntimeError as error:
        seen = f"refused: {error}"

print("expected: refused, or a warning that 1.000244140625 in float32 is loaded into bfloat16")
print(f"seen: {seen}")
sys.exit(0 if warned or seen.startswith("refused") else 1)
