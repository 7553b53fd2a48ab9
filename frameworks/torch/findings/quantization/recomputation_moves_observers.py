"""A checkpointed fake quantizer is observed in the forward pass and again when it is recomputed."""

import sys

import torch
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.utils.checkpoint import checkpoint

seen = {}
for checkpointed in (False, True):
    quantizer = FakeQuantize(MovingAverageMinMaxObserver, dtype=torch.quint8, averaging_constant=0.5)
    quantizer(torch.tensor([0.0, 1.0]))
    x = torch.tensor([0.0, 3.0], requires_grad=True)
    y = checkpoint(quantizer, x, use_reentrant=False) if checkpointed else quantizer(x)
    y.sin().sum().backward()
    seen[checkpointed] = quantizer.activation_post_process.max_val.item()
print(f"expected: the average of 1 and 3, {seen[False]}")
print(f"seen: {seen[True]}")
sys.exit(seen[True] != seen[False])
