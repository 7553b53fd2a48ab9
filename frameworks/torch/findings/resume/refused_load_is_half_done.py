"""Module.load_state_dict refuses other names and shapes after it has copied every tensor that fits."""

import sys

import torch

saved, receiver = torch.nn.Linear(8, 1), torch.nn.Linear(4, 1)
torch.nn.init.zeros_(receiver.bias)
torch.nn.init.ones_(saved.bias)
try:
    receiver.load_state_dict(saved.state_dict())
    seen = "not refused"
except RuntimeError:
    seen = f"refused, and the bias is {receiver.bias.item()}"

print("expected: refused, and the bias is 0.0 as it was before")
print(f"seen: {seen}")
sys.exit(0 if seen == "refused, and the bias is 0.0" else 1)
