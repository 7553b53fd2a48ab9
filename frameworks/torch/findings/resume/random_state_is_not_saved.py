"""A checkpoint of the state dictionaries holds no random state, so a resumed run draws other dropout masks."""

import io
import sys

import torch

torch.manual_seed(0)
layer, file, x = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)), io.BytesIO(), torch.ones(1, 16)
layer(x)
torch.save({"model": layer.state_dict()}, file)
file.seek(0)
uninterrupted = layer(x).item()
layer.load_state_dict(torch.load(file)["model"])
same = layer(x).item() == uninterrupted

print("expected: the output of the run that was not stopped")
print(f"seen: {'that' if same else 'another'} output")
sys.exit(not same)
