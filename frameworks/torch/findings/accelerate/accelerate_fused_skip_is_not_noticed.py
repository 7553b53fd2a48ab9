"""After an overflow that a fused optimizer skips, optimizer_step_was_skipped is False and the schedule advances."""

import math
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu"), True  # accelerate makes it on a GPU
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.AdamW([weight], lr=0.5, fused=True)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
accelerator.backward(weight.sum() * math.inf)
optimizer.step()
scheduler.step()

seen = weight.item(), accelerator.optimizer_step_was_skipped, scheduler.get_last_lr()[0]
print("expected: (1.0, True, 0.5)")
print(f"seen: {seen}")
sys.exit(0 if seen == (1.0, True, 0.5) else 1)
