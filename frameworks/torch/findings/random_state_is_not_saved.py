"""A checkpoint of the state dictionaries holds no random state, so a resumed run draws other dropout masks."""

import io
import sys

import torch

torch.manual_seed(0)
layer, file, x = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)), io.BytesIO(), torch.ones(1, 16)
layer(x)
torch.save({"model": layer.state_dict()}, file)
file.seek(0)
expected = layer(x).item()
layer.load_state_dict(torch.load(file)["model"])
seen = layer(x).item()

print(f"expected: {expected}, as the run that was not stopped goes on")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
