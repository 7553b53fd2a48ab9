"""A model offloaded by `cpu_offload` trains without an error, but its weights get no gradient and never move."""

import sys

import torch
from accelerate import cpu_offload

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=True)
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.125), []
try:
    for _ in range(2):
        losses.append((loss := model(torch.ones(1, 2)).sum()).item())
        loss.backward()
        optimizer.step()
except (RuntimeError, NotImplementedError) as error:
    losses.append(str(error))
print("expected: two losses that differ, or an exception")
print(f"seen: {losses}")
sys.exit(0 if losses[0] != losses[-1] else 1)
