"""An optimizer step inside an open autocast region is not seen by the next forward pass in it."""

import sys

import torch

layer = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(layer.weight)
optimizer, x = torch.optim.SGD(layer.parameters(), lr=1.0), torch.ones(1, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    layer(x).sum().backward()
    optimizer.step()  # 1 - 1 = 0
    seen = layer(x).item()

print("expected: 0.0, the product of the new weight")
print(f"seen: {seen}")
sys.exit(0 if seen == 0.0 else 1)
