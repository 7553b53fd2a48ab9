"""Each prepared optimizer's step updates the loss scale, so the second one unscales its gradient by another scale."""

import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, mixed_precision="fp16")
if accelerator.scaler is None:  # on a CPU accelerate makes no scaler; this is the one that it makes on a GPU
    accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", 1024.0, growth_interval=1), True
weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
optimizers = [accelerator.prepare(torch.optim.SGD([weight], lr=1.0)) for weight in weights]
accelerator.backward(sum(weights).sum())
for optimizer in optimizers:
    optimizer.step()

seen = [weight.item() for weight in weights], accelerator.scaler.get_scale()
print("expected: ([-1.0, -1.0], 2048.0)")
print(f"seen: {seen}")
sys.exit(0 if seen == ([-1.0, -1.0], 2048.0) else 1)
